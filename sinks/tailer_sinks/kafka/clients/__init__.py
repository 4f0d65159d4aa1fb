"""Two Kafka clients behind one port: kafka-python, which is always installed, and confluent-kafka."""

__all__: list[str] = []
