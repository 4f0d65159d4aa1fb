"""Native reading: Spark's own Parquet reader for the rows that it reads exactly as `tailer.read.execute` does.

changes             the changes of a table, and any planned work, as a DataFrame
native_eligibility  who reads a file: Spark's reader, or `execute`
scans               scans by Spark's reader, in the columns that are shown
executed            the data source for everything else
comparing           comparisons that all executors share
shared_index        their index of rows
equal_rows          its queries
"""

__all__: list[str] = []
