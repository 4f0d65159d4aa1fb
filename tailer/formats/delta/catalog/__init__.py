"""Catalogs that ratify a table's commits (PROTOCOL.md, "Catalog-managed tables"): the port, and Unity Catalog."""

__all__: list[str] = []
