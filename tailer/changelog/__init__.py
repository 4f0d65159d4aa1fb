"""The changelog of rewritten files: the rows that changed.

Without a change feed, a writer that changes one row rewrites its file. The log then says that all rows of the file were
deleted and inserted. This package compares the rows and drops the unchanged ones (`carryovers`, `engine`), pairs a
delete and an insert of one row into an update, and reduces a range of versions to its net changes (`net_changes`). Rows
are compared in an index (`row_index`), in memory or on disk, and the results are spilled to disk too (`spill`).
"""

__all__: list[str] = []
