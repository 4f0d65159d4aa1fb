"""The changelog of rewritten files: which of their rows changed.

Without a change feed, a writer that changes one row rewrites its file: the log says that all of its rows were deleted
and inserted. This package compares them and keeps what is different (`carryovers`, `engine`), pairs a delete and an
insert of one row into an update, and reduces a range of versions to its net changes (`net_changes`). Rows are compared
on disk (`row_index`), and what is found is spilled there too (`spill`).
"""

__all__: list[str] = []
