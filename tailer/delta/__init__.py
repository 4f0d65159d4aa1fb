"""Delta Lake: from the files of a `_delta_log` to change plans.

log          file names, listings, segments        (what is there)
actions      one commit file, parsed once          (what was written)
checkpoint   state without its history             (where to begin)
features     what a table may ask of a reader      (what we refuse)
schema       Delta types and values as Arrow's     (what a row looks like)
snapshot     the table's state, advanced commit by commit
changes      a commit and its state -> ChangePlan  (the rules of the change feed)
deletion_vector  a descriptor -> row positions
table        the pieces behind the `TableLog` port
commit, state    writing: `txn` actions in a small table of our own
"""

__all__: list[str] = []
