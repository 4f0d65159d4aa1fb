"""Iceberg: from the snapshots of a table to plans.

format      the format as others know it
table       the snapshots of a branch behind the `TableLog` port
lineage     the snapshots of a branch in order, and their numbers
changes     which rows of which files changed, from one snapshot to the next
tasks       the tasks and the plan of a snapshot
inspector   the profile of a table, and summaries of its snapshots
catalogs/   names of tables in catalogs, and the clients of these
metadata/   the JSON file that is the table: where it is, snapshots, schemas, partition specs
files/      manifest lists and manifests: the files of a snapshot
deletes/    which rows of a file are deleted: positions, deletion vectors, equality deletes
"""

__all__: list[str] = []
