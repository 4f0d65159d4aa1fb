"""The files of a `_delta_log`: names, listings, commits and their actions, times (PROTOCOL.md, "File Types")."""

__all__: list[str] = []
