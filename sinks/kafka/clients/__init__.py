"""The two Kafka clients behind one port: kafka-python, which always comes along, and confluent-kafka."""

__all__: list[str] = []
