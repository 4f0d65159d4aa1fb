"""Delta Lake: from the files of a `_delta_log` to change plans.

log, paths   file names, listings, segments        (what is there)
last_checkpoint  the hint where to begin           (believed only if it is sound)
catalog      commits that a catalog hands out      (where they are, if not in the log)
actions      one commit file, parsed once          (what was written)
checkpoint   state without its history             (where to begin)
live_files, spill  the files of a snapshot, in order, in bounded memory
features     what a table may ask of a reader      (supported, ignored or refused, and why)
schema       Delta types and values as Arrow's     (what a row looks like)
snapshot     the table's state, advanced commit by commit
clock, retention  when a commit was made, and how long what it needs is kept
changes      a commit and the states around it -> ChangePlan  (the rules of the change feed)
deletion_vector  a descriptor -> row positions
table        the pieces behind the `TableLog` port
commit, state    writing: `txn` actions in a small table of our own
"""

__all__: list[str] = []
