"""Native reading: Spark's own Parquet reader for the rows that it reads exactly as `tailer.read.execute` does.

changes             the changes of a table as a DataFrame
options             its arguments, and those of `tailer.spark.follow`, as options of the data source
frames              planned work as a DataFrame
native_eligibility  who reads a file: Spark's reader, or `execute`
scans               scans by Spark's reader, in the columns that are shown
file_constants      what the plan knows of each file
file_index          files with their constants, as Spark asks for them (file_index.java)
executed            the data source for everything else
comparing           comparisons that all executors share
shared_index        their index of rows
equal_rows          its queries
fingerprint_views   what executors hand to it
"""

__all__: list[str] = []
