"""`SparkEngine`, the session that it shares, and the only way to make Spark run a function on executors."""

__all__: list[str] = []
