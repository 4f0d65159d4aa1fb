"""Pipelines whose rows executors write, to Kafka, in shards."""

__all__: list[str] = []
