"""The judge of whole tables: what `tailer.changes` gives from the start on, folded at every version.

It needs the rows of each version from another reader. Which columns a version of a Delta table has is read from the
commit files here.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import tailer
from tailer.errors import TailerError
from tailer.events import COMMIT_VERSION
from tests.support.oracle.column_identity import Schema, restate
from tests.support.oracle.rows import METADATA, Rows, assert_same, gone_and_come, rows_of

__all__ = ["Delivered", "check_folds", "check_snapshot", "commits", "deliver", "schemas_of"]

_NO_COLUMNS: Final[Schema] = {"type": "struct", "fields": []}


@dataclass(frozen=True)
class Delivered:
    """The change rows of each version that has some, and the error that came after them."""

    versions: dict[int, list[pa.Table]]
    error: TailerError | None


def deliver(path: Path, **options: Any) -> Delivered:
    """Follow a table from its earliest changes to the latest, or to the error that ends this.

    `options`: of `tailer.changes`.
    """
    versions: dict[int, list[pa.Table]] = {}
    try:
        for batch in tailer.changes(path, **options):
            versions.setdefault(batch.column(COMMIT_VERSION)[0].as_py(), []).append(pa.Table.from_batches([batch]))
    except TailerError as error:
        return Delivered(versions, error)
    return Delivered(versions, None)


def check_folds(path: Path, delivered: Delivered, states: Iterable[tuple[int, Rows]], before: Rows | None) -> Rows:
    """Check that the changes lead from each version's rows to the next. Return the rows of the last version.

    `states`: the versions that were followed, with their rows. `before`: the rows before the first of them, None where
    nobody knows them. Then the rows that it inserts must be there.
    """
    schemas = schemas_of(path)
    known: Schema | None = None
    left = set(delivered.versions)
    for version, after in states:
        where = f"{path.name} version {version}"
        before_known, known = known, schemas.get(version, known)
        changes = delivered.versions.get(version, [])
        left.discard(version)
        if before is None:
            _, come = gone_and_come(Rows(), changes, where)
            before = after - come
        kept, come = gone_and_come(before, changes, where)
        if before_known is not None and known is not None and known != before_known:
            kept = restate(kept, before_known, known)
        assert_same(kept + come, after, where)
        before = after
    assert not left, f"{path.name}: changes of versions {sorted(left)}, which nobody else knows"
    return before or Rows()


def check_snapshot(path: Path, latest: Rows) -> None:
    """Check the rows that a start with a snapshot delivers."""
    delivered = deliver(path, start="snapshot")
    assert delivered.error is None, f"{path.name}: the snapshot: {delivered.error!r}"
    found = sum((rows_of(table, METADATA) for tables in delivered.versions.values() for table in tables), Rows())
    assert_same(found, latest, f"{path.name}: the snapshot")


def commits(path: Path) -> list[int]:
    """Return the versions whose commit file, or manifest, the log holds."""
    log = path / "_delta_log"
    if log.is_dir():
        return sorted(int(file.stem) for file in log.glob("[0-9]" * 20 + ".json"))
    return sorted(_lance_version(file.stem) for file in path.joinpath("_versions").glob("*.manifest"))


def _lance_version(stem: str) -> int:
    """Return the version of a manifest: newer datasets count down from the largest number."""
    return int(stem) if len(stem) < 20 else 2**64 - 1 - int(stem)


def schemas_of(path: Path) -> dict[int, Schema]:
    """Return the columns of each version whose commit sets them; metadata without a schema is that of no columns."""
    found: dict[int, Schema] = {}
    for version in commits(path) if path.joinpath("_delta_log").is_dir() else ():
        for action in _actions(path.joinpath("_delta_log", f"{version:020d}.json").read_text()):
            if "metaData" in action:
                schema = action["metaData"].get("schemaString")
                found[version] = _NO_COLUMNS if schema is None else json.loads(schema)
    return found


def _actions(commit: str) -> Iterator[Mapping[str, Any]]:
    """Read the actions of a commit: some writers need several lines for one, or write text after it."""
    at = commit.find("{")
    while at >= 0:
        action, end = json.JSONDecoder().raw_decode(commit, at)
        yield action
        at = commit.find("{", end)
