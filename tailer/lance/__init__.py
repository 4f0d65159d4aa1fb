"""Lance: from the manifests of a dataset to its versions.

version_names   the manifests in a `_versions` folder, in both naming schemes
"""

__all__: list[str] = []
