"""Resolution of paths in actions (PROTOCOL.md, "Add File and Remove File"): data, change and vector files alike."""

import re
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from tailer.stores.location import split_location

__all__ = ["locate", "locate_all"]

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//?)(.*)", re.DOTALL)
# Schemes recognised before a single slash. Before two slashes, anything is a scheme.
_SCHEMES: Final = re.compile(
    r"abfss?|adl|dbfs|file|ftp|gs|hdfs|https?|oss|s3[an]?|viewfs|wasbs?|webhdfs", re.IGNORECASE
)
# What only some paths have: a scheme, an escape, a NUL, a slash at an end, or a dot segment.
_UNUSUAL: Final = re.compile(r"[:%\0]|^/|/$|^$|(?:^|/)\.\.?(?:/|$)")
# Escapes in the paths of many partitions: of what neither ends a folder nor is a dot. A percent sign comes last.
_ESCAPES: Final = (("%20", " "), ("%3A", ":"), ("%25", "%"))
_INTRICATE: Final = r"[:\x00]|^/|/$|^$|(?:^|/)\.\.?(?:/|$)|%(?:$|[^23]|2(?:$|[^05])|3(?:$|[^A]))"
_DOTS: Final = re.compile(r"(?:^|/)\.\.?(?:/|$)")


def locate(path: str, root: str) -> str:
    """Resolve a path of the log: percent-decoded once, without dot segments, under `root` unless it is absolute.

    Absolute paths are those that begin with a slash, and URIs: a known scheme and a slash, or any scheme and two
    slashes. Every other path is relative, whatever it has before a colon. A local location begins with a slash, and no
    other location does. So a file URI becomes a path, unless it names another host. `s3a:` and `s3n:` become `s3:`, and
    `abfs:` becomes `abfss:`.

    Raises `ValueError` for an impossible file name: not UTF-8 after decoding, with a NUL in it, or of a folder.
    """
    if not _UNUSUAL.search(path):
        return f"{root}/{path}"
    location = _resolve(path, root)
    if location.rpartition("/")[2] in ("", ".", ".."):
        raise ValueError("it does not name a file")
    return location


def locate_all(paths: pa.StringArray, root: str) -> pa.StringArray:
    """Resolve each path as `locate` does: all at once, unless one is unusual in another way than by common escapes."""
    if pc.any(pc.match_substring_regex(paths, _UNUSUAL.pattern)).as_py():
        if pc.any(pc.match_substring_regex(paths, _INTRICATE)).as_py():
            return pa.array([locate(path, root) for path in paths.to_pylist()], pa.string())
        for escape, character in _ESCAPES:
            paths = pc.replace_substring(paths, escape, character)
    return pc.binary_join_element_wise(root, paths, "/")


def _resolve(path: str, root: str) -> str:
    uri = _URI.match(path)
    if uri is not None and (uri[2] == "//" or _SCHEMES.fullmatch(uri[1])):
        scheme, host, name = uri[1], "", uri[3]
        if uri[2] == "//":
            host, _, name = name.partition("/")
        if host and (place := split_location(f"{scheme}://{host}")) is not None:
            return f"{place.root}/{_without_dots(_decode(name))}"
        if scheme.lower() != "file" or host.lower() not in ("", "localhost"):
            return _decode(path)
        return _without_dots(_decode("/" + name.lstrip("/")))
    if path.startswith("/"):
        return _without_dots(_decode(path))
    path = _without_dots(_decode(path))
    while path == ".." or path.startswith("../"):
        root, path = root.rpartition("/")[0], path[3:]
    return f"{root}/{path}"


def _without_dots(path: str) -> str:
    """Remove `.` and `..` from a decoded path, as Hadoop does: symbolic links are ignored.

    A relative result may still begin with `..`.
    """
    if not _DOTS.search(path):
        return path
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == ".." and segments and segments[-1] != "..":
            if segments != [""]:
                segments.pop()
        elif segment != "." and not (segment == ".." and segments == [""]):
            segments.append(segment)
    return "/".join(segments)


def _decode(path: str) -> str:
    text = unquote(path, errors="strict") if "%" in path else path
    if "\0" in text:
        raise ValueError(f"path {path!r} contains a NUL")
    return text
