"""Lance: from the manifests of a dataset to plans.

format          the format as others know it
table           the versions behind the `TableLog` port
history         the versions in a store: listed, read, found by time
changes         which rows of which fragments changed, from one version to the next
columns         physical names of columns
version_names   the manifests in a `_versions` folder, in both naming schemes
protobuf        the wire format of all metadata
manifest        one version: schema, fragments, feature flags, transaction
fragment        data files, deletion file and row ids of one fragment
refs/           names of branches and of versions
rows/           the deleted offsets of a fragment; the reader of rows: pylance, one fragment at a time
row_ids/        the stable ids of a fragment's rows, and the versions of their last updates
features        reader feature flags, supported and refused
schema          fields of a manifest as an Arrow schema
"""

__all__: list[str] = []
