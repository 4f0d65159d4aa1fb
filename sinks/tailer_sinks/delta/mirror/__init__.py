"""`mode = "mirror"` of the `delta` sink: a Delta table that equals the source at a version, exactly once.

A transaction is one Delta commit: a MERGE by key, with the `txn` action that holds the progress. It brings whole
versions only, so readers never see half of one. A snapshot is one commit, too: it takes the place of all rows. So does
a transaction that is too large to merge, of which the table's other rows are a part.

A row is identified by its key. A version deletes a key at most once, and inserts it at most once, after that. So the
rows of a version need no order. Of each key, the first change says whether the table must have it, and the last one
whether the table has it afterwards. Whatever contradicts that stops the pipeline, before anything is committed.

The property `lakeTailer.mirror` names the pipeline that made the table. A mirror may keep what is gone (`past`): the
property `lakeTailer.mirror.past` says what.
"""

__all__: list[str] = []
