"""Lance: from the manifests of a dataset to plans.

format      the format as others know it
table       the versions behind the `TableLog` port
history     the versions in a store: listed, read, found by time
changes     which rows of which fragments changed, from one version to the next
protobuf    the wire format of all metadata
manifest    one version: schema, fragments, transaction; names of manifests; feature flags, supported and refused
fragment    data files, deletion file and row ids of one fragment
schema      fields of a manifest as an Arrow schema; physical names of columns
refs        names of branches and of versions, as files in the folder `_refs`
rows/       the reader of rows: pylance, one fragment at a time
inspector   the profile of a dataset, and summaries of its versions
"""

__all__: list[str] = []
