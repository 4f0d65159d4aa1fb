"""The metadata file of a table (Iceberg specification, "Table Metadata").

current    finds the current file, in the folder of a table or by its catalog
document   its content: references, schemas, partition specs, and snapshots, of which only new ones are parsed
schema     a schema of it as an Arrow schema; single values as text
"""

__all__: list[str] = []
