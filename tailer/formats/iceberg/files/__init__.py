"""The files of a snapshot (Iceberg specification, "Manifests", "Snapshots").

places      where files of the table are, and how they are opened
manifests   manifest lists and manifests, decoded from Avro; bounds and numbers of nulls, for conditions
live        the live files of snapshots, and how they differ from those of another
"""

__all__: list[str] = []
