"""Where the paths in actions point (PROTOCOL.md, "Add File and Remove File"): data, change and vector files alike."""

import re
from typing import Final
from urllib.parse import unquote

__all__ = ["locate"]

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def locate(path: str, root: str) -> str:
    """Where a path of the log points: percent-decoded once; joined to the table's root unless it is absolute.

    Raises `ValueError` where that is no name a file can have: not UTF-8 once decoded, or with a NUL in it.
    """
    if path.startswith("file:"):
        return "/" + _decoded(path.removeprefix("file:")).lstrip("/")
    if _SCHEME.match(path) or path.startswith("/"):
        return _decoded(path)
    return f"{root}/{_decoded(path)}"


def _decoded(path: str) -> str:
    text = unquote(path, errors="strict") if "%" in path else path
    if "\0" in text:
        raise ValueError(f"path {path!r} has a NUL in it")
    return text
