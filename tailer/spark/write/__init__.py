"""Pipelines whose rows executors write: to Delta with Spark's own writer, to Kafka in shards."""

__all__: list[str] = []
