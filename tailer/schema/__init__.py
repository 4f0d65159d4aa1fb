"""Schema evolution for every table format: column identity, schema conversion, differences between two schemas."""

__all__: list[str] = []
