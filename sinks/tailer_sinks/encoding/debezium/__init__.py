"""Change rows as Debezium's messages."""

__all__: list[str] = []
