"""librdkafka, in the library that confluent-kafka brings: with whole batches, or with one message at a time."""

__all__: list[str] = []
