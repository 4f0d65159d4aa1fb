"""Streams of DataFrames that Spark reads by itself wherever it can.

follow              the changes of a table as such a stream
driver_stream       the stream behind it, planned by the driver's own Python
plans               the same as a data source of plans, where Spark cannot call that Python
"""

__all__: list[str] = []
