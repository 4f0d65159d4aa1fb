"""Catalogs of Iceberg tables, which know the current metadata file of each by name.

names      the names, `iceberg://CATALOG/NAMESPACE.TABLE`, for the rest of the program
client     one request to a catalog: where the metadata of a table is, which tables a namespace has
"""

__all__: list[str] = []
