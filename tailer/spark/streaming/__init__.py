"""Streams of DataFrames that Spark reads by itself wherever it can.

follow              the changes of a table as such a stream
driver_stream       the stream behind it, planned by the driver's own Python
"""

__all__: list[str] = []
