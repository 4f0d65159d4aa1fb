"""A configuration that fits what was found: one that loads, on this machine, into a target that needs no server."""

import re
from collections.abc import Sequence

import msgspec

from tailer.cli.doctor.examination import Examination
from tailer.cli.doctor.findings import best_key
from tailer.config.tables import TableRef

__all__ = ["suggest", "suggest_template"]

_HEAD = """\
# Save this as tailer.toml; then `tailer check --connect` and `tailer run`.
"""
_TARGET = "the target; others: kafka, delta, files, http (docs/configuration.md)"


def suggest(table: TableRef, examination: Examination) -> str:
    """Return the configuration of a pipeline for a table."""
    name = _name(table.location.rstrip("/").rpartition("/")[2])
    profile = examination.profile
    has_ids = profile is not None and profile.row_ids and not profile.feed
    return _configuration(name, name, table, best_key(examination), has_ids)


def suggest_template(tables: TableRef, examinations: Sequence[Examination]) -> str:
    """Return the configuration of a template for tables, of which at least one was found."""
    name = _name(next(part for part in tables.location.split("/") if "*" in part))
    keys = {best_key(examination) for examination in examinations if examination.stop is None}
    key = keys.pop() if len(keys) == 1 else ()
    return _configuration(name, "{table}", tables, key, has_ids=False)


def _configuration(name: str, target: str, table: TableRef, key: tuple[str, ...], has_ids: bool) -> str:
    lines = [_HEAD, f"[pipelines.{name}]", f"table = {_text(table.location)}"]
    if table.table_format is not None:
        lines.append(f"table_format = {_text(table.table_format)}")
    if table.branch is not None:
        lines.append(f"branch = {_text(table.branch)}")
    if table.allowed_roots:
        lines.append(f"allowed_roots = {_text(list(table.allowed_roots))}")
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
