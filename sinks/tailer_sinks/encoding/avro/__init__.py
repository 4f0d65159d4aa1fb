"""Change rows as Avro messages, and the schema registry with the ids of their schemas."""

__all__: list[str] = []
