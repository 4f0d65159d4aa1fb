"""Pipelines whose rows executors write: to Delta through Spark's own writer, to Kafka in shards."""

__all__: list[str] = []
