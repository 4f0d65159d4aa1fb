"""A configuration that fits what was found: one that loads, on this machine, into a target that needs no server."""

import re
from collections.abc import Sequence

import msgspec

from tailer.cli.doctor.examination import Examination
from tailer.cli.doctor.findings import best_key

__all__ = ["suggest", "suggest_template"]

_HEAD = """\
# Save this as tailer.toml; then `tailer check --connect` and `tailer run`.
"""
_TARGET = "the target; others: kafka, delta, files, http (docs/configuration.md)"


def suggest(
    table: str, found: Examination, table_format: str | None, branch: str | None, allowed_roots: Sequence[str]
) -> str:
    """Return the configuration of a pipeline for a table. `table`: its location, or its name in a catalog."""
    name = _name(table.rstrip("/").rpartition("/")[2])
    profile = found.profile
    has_ids = profile is not None and profile.row_ids and not profile.feed
    return _configuration(name, name, table, best_key(found), table_format, branch, allowed_roots, has_ids)


def suggest_template(
    pattern: str, found: Sequence[Examination], table_format: str | None, allowed_roots: Sequence[str]
) -> str:
    """Return the configuration of a template for tables, of which at least one was found."""
    name = _name(next(part for part in pattern.split("/") if "*" in part))
    keys = {best_key(each) for each in found if each.stop is None}
    key = keys.pop() if len(keys) == 1 else ()
    return _configuration(name, "{table}", pattern, key, table_format, None, allowed_roots, has_ids=False)


def _configuration(
    name: str,
    target: str,
    table: str,
    key: tuple[str, ...],
    table_format: str | None,
    branch: str | None,
    allowed_roots: Sequence[str],
    has_ids: bool,
) -> str:
    lines = [_HEAD, f"[pipelines.{name}]", f"table = {_text(table)}"]
    if table_format is not None:
        lines.append(f"table_format = {_text(table_format)}")
    if branch is not None:
        lines.append(f"branch = {_text(branch)}")
    if allowed_roots:
        lines.append(f"allowed_roots = {_text(list(allowed_roots))}")
    lines.append('start = "snapshot"  # all rows first, then every change; "latest": only what is new')
    if not key and has_ids:
        lines.append("row_ids = true  # they identify the rows of the mirror")
    elif key:
        lines.append(
            "# compute_updates = true  # for targets that tell updates from deletes and inserts, such as Kafka"
        )
        lines.append(f"# key = {_text(list(key))}")
    lines += ['# on_data_loss = "resnapshot"  # go on by itself after files were deleted too early', ""]
    lines.append(f"[pipelines.{name}.sink]  # {_TARGET}")
    if key or has_ids:
        lines += ['kind = "sql"  # keeps a table of SQLite, DuckDB or PostgreSQL equal to the source (docs/sql.md)']
        lines += [f'url = "sqlite:///{name}.db"', f"table = {_text(target)}"]
        if key:
            lines.append(f"key = {_text(list(key))}  # the columns that identify a row: check that they do")
    else:
        lines.append('# With a key, kind = "sql" keeps a table of a database equal to the source (docs/sql.md).')
        lines.append('kind = "files"  # appends every change to files of JSON lines (docs/files.md)')
        lines.append(f"path = {_text(f'{name}-changes' + '/{table}' * (target != name))}")
    return "\n".join(lines) + "\n"


def _name(text: str) -> str:
    """Return a name for a pipeline: what of `text` may be in one."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_-") or "tables"


def _text(value: str | list[str]) -> str:
    """Return a value as TOML has it, which JSON's texts and lists are."""
    return msgspec.json.encode(value).decode()
