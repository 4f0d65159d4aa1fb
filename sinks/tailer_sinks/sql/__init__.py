"""The `sql` sink: a table of a database that mirrors the source, or logs its changes, exactly once.

Rows and progress are written in one transaction of the database. A mirror equals the source at a version, and readers
never see half of one; a log has every change row once, with its position.

Rows are loaded into a temporary table as they come. The commit merges them into the table. If a version takes several
transactions, all but the last one store its rows in a table that stays, in the same transaction as the progress.
"""

__all__: list[str] = []
