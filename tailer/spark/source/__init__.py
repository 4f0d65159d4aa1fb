"""The data source `tailer`: a table's changes for Spark, as a batch or as a stream."""

__all__: list[str] = []
