"""`SparkEngine`, and the only module that knows how to make Spark run a function on executors."""

__all__: list[str] = []
