"""Two readers beside Spark's time travel, as oracles: PyIceberg's scan of a snapshot, and Spark's changelog view.

Neither reads everything. What they cannot read is left out by a rule, and counted with its reason.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.table import StaticTable

from tailer.events import is_variant
from tests.support.iceberg.rows import DELETED, Value, restated, row_of
from tests.support.iceberg.spark.client import Answer

__all__ = ["COMPARED", "Oracles"]

COMPARED: Final = "compared"
_NO_ORDER: Final = ("unorderable columns", "UNSUPPORTED_FEATURE.PARTITION_BY_", "INVALID_ORDERING_TYPE")
_NO_DELETES: Final = "Delete files are currently not supported in changelog scans"

Changes = Counter[tuple[bool, Value]]


@dataclass
class Oracles:
    """The oracles of the table at `location`. `scans`, `views`: how many snapshots were compared, or why not."""

    location: Path
    scans: Counter[str] = field(default_factory=Counter)
    views: Counter[str] = field(default_factory=Counter)

    def check_scan(self, snapshot_id: int, schema: pa.Schema, rows: Counter[Value]) -> None:
        """Check that PyIceberg reads the same rows of a snapshot, if it can.

        It reads a null list or map as an empty one, so they are equal.
        """
        reason, found = self._scanned(snapshot_id, schema)
        self.scans[reason] += 1
        wanted = Counter(map(_filled, rows.elements()))
        assert reason != COMPARED or found == wanted, _difference("PyIceberg", found, wanted)

    def _scanned(self, snapshot_id: int, schema: pa.Schema) -> tuple[str, Counter[Value]]:
        try:
            table = StaticTable.from_metadata(str(_newest(self.location / "metadata")))
        except ValidationError as error:
            assert "variant" in str(error), error  # noqa: PT017 - other errors are none of this kind
            return "a Variant, now or before: the metadata cannot be read", Counter()
        snapshot = table.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        assert snapshot.summary is not None
        if int(snapshot.summary["total-equality-deletes"] or 0):
            return "equality deletes", Counter()
        if table.format_version == 3 and int(snapshot.summary["total-position-deletes"] or 0):
            return "deletion vectors: not found", Counter()
        rows = table.scan(snapshot_id=snapshot_id).to_arrow()
        return COMPARED, Counter(_filled(row_of(values, schema)) for values in rows.to_pylist())

    def check_view(
        self, answer: Answer, schema: pa.Schema, changes: Iterable[tuple[str, Value]], *, compares_less: bool
    ) -> None:
        """Check that Spark's changelog view has the same changes of a snapshot, if it has any.

        It has the columns of now, so rows of before lose the others. `compares_less`: we tell rows apart by such a
        column or by their row ids, which it does not know: so equal ones cancel out. With bytes, those of the view
        do: there copied rows are no equal ones (iceberg#18211).
        """
        if isinstance(answer.changes, str):
            self.views[_refused(answer.changes, schema)] += 1
            return
        assert answer.changes is not None
        assert list(answer.columns) == list(answer.changes.columns)
        wanted: Changes = Counter()
        for kind, *values in answer.changes.rows:
            wanted[kind == "DELETE", row_of(dict(zip(answer.columns, values, strict=True)), schema)] += 1
        found: Changes = Counter((kind in DELETED, restated(row, schema)) for kind, row in changes)
        self.views[COMPARED] += 1
        found = _net(found) if compares_less else found
        wanted = _net(wanted) if any(map(pa.types.is_binary, schema.types)) else wanted
        assert found == wanted, _difference("Spark's view", wanted, found)


def _refused(error: str, schema: pa.Schema) -> str:
    """Return why the changelog view of a snapshot cannot be read."""
    if _NO_DELETES in error:
        return "delete files"
    assert any(text in error for text in _NO_ORDER), error
    assert any(is_variant(kind) or pa.types.is_map(kind) for kind in schema.types), error
    return "a column that has no order"


def _filled(value: Value) -> Value:
    """Return a value without empty lists, maps and structs in it."""
    if isinstance(value, frozenset):
        pairs = ((key, _filled(each)) for key, each in value)
        return frozenset((key, each) for key, each in pairs if each not in ((), frozenset()))
    return tuple(map(_filled, value)) if isinstance(value, tuple) else value


def _difference(oracle: str, found: Counter[Any], ours: Counter[Any]) -> str:
    return f"{oracle} alone: {[*(found - ours)][:5]}\n  ours alone: {[*(ours - found)][:5]}"


def _newest(folder: Path) -> Path:
    """Return the newest metadata file, as a Hadoop catalog names them."""
    return max(folder.glob("v*.metadata.json"), key=lambda path: int(path.name[1:].split(".")[0]))


def _net(changes: Changes) -> Changes:
    """Return changes without pairs of equal rows."""
    return +Counter({(gone, row): count - changes[not gone, row] for (gone, row), count in changes.items()})
