"""The metadata file of a table (Iceberg specification, "Table Metadata").

current    finds the current file in the folder of a table
document   its content: references, schemas, partition specs
snapshots  its snapshots, of which only new ones are parsed
schema     a schema of it as an Arrow schema
values     single values as text: of partitions and defaults
"""

__all__: list[str] = []
