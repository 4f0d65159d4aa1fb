"""`SparkEngine`, and the one place that knows how Spark is made to run a function on executors."""

__all__: list[str] = []
