"""Change rows as Avro messages, and the schema registry that gives their schemas ids."""

__all__: list[str] = []
