"""The shop in a Lance dataset with stable row ids, written by pylance, and the comparison with its versions.

The changes of each version must turn the rows before it into those after it, as pylance reads both.
"""

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Final

import lance
import pyarrow as pa
from deltalake import DeltaTable

from examples.demo.writer import CHANGE, EFFECTS, METADATA, Commit, Verdict

__all__ = ["LanceShop"]

_SCHEMA: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("country", pa.string()),
        ("status", pa.string()),
        ("amount", pa.decimal128(10, 2)),
    ]
)
_CUSTOMERS: Final = ("Ada", "Bob", "Cem", "Dua", "Eva", "Fay", "Gus")
_COUNTRIES: Final = ("DE", "FR", "JP", "BR", "US")
_ROWS_PER_FILE: Final = 150

_Rows = Counter[tuple[object, ...]]


class LanceShop:
    """Writes the dataset at `path` in `rounds` of five commits; see `Writer`."""

    name = "Lance"
    scene = "the dataset orders, with stable row ids"
    reference = "the versions of the dataset"

    def __init__(self, path: Path, rounds: int) -> None:
        self._path = path
        self._rounds = rounds
        self.operations: Counter[str] = Counter()

    @property
    def commits(self) -> int:
        """See `Writer.commits`."""
        return 2 + 5 * self._rounds

    def open(self) -> Commit:
        """See `Writer.open`."""
        lance.write_dataset(_SCHEMA.empty_table(), self._path, enable_stable_row_ids=True)
        return self._record("create", None)

    def trade(self) -> Iterator[Commit]:
        """See `Writer.trade`."""
        yield self._insert(range(400))
        for number in range(self._rounds):
            yield self._insert(range(400 + 100 * number, 500 + 100 * number))
            yield self._update({"status": "'paid'", "amount": "amount + 1"}, f"id % 11 = {number}")
            yield self._merge(range(350 + 100 * number, 520 + 100 * number, 3))
            yield self._delete(f"id % 29 = {number}")
            if number % 2:
                # Insert the same rows again: a table is a multiset, and so must be its copy.
                yield self._insert(range(400 + 100 * number, 410 + 100 * number))
            else:
                yield self._update({"country": "'NL'"}, f"id % 13 = {number}")
        self._dataset().optimize.compact_files(target_rows_per_fragment=1000)
        yield self._record("compact", None)

    def judge(self, copy: Path) -> Verdict:
        """See `Writer.judge`."""
        delivered = DeltaTable(copy).to_pyarrow_table()
        kinds = Counter(delivered[CHANGE].to_pylist())
        changes: dict[int, _Rows] = {}
        columns = [*_SCHEMA.names, *METADATA]
        for *values, kind, version, _ in zip(*(delivered[name].to_pylist() for name in columns), strict=True):
            changes.setdefault(version, Counter())[tuple(values)] += EFFECTS.get(kind, 0)
        rows: _Rows = Counter()
        folded: _Rows = Counter()
        missing = unexpected = 0
        for version in range(1, self._dataset().version + 1):
            before, rows = rows, _rows(lance.dataset(self._path, version=version).to_table())
            counted = changes.pop(version, Counter())
            wanted = Counter(rows)
            wanted.subtract(before)
            wanted.subtract(counted)
            missing += sum(abs(count) for count in wanted.values() if count > 0)
            unexpected += sum(abs(count) for count in wanted.values() if count < 0)
            folded.update(counted)
        unexpected += sum(sum(map(abs, counted.values())) for counted in changes.values())
        left = Counter(rows)
        left.subtract(folded)
        lacking, left_over = (sum(max(sign * count, 0) for count in left.values()) for sign in (1, -1))
        return Verdict(kinds, missing, unexpected, rows.total(), lacking, left_over)

    def _dataset(self) -> lance.LanceDataset:
        return lance.dataset(self._path)

    def _insert(self, ids: range) -> Commit:
        lance.write_dataset(_orders(ids), self._path, mode="append", max_rows_per_file=_ROWS_PER_FILE)
        return self._record("insert", len(ids))

    def _update(self, values: dict[str, str], where: str) -> Commit:
        return self._record("update", self._dataset().update(values, where=where)["num_rows_updated"])

    def _merge(self, ids: range) -> Commit:
        merge = self._dataset().merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        done = merge.execute(_orders(ids, "imported"))
        return self._record("merge", done["num_inserted_rows"] + done["num_updated_rows"])

    def _delete(self, where: str) -> Commit:
        before = self._dataset().count_rows()
        self._dataset().delete(where)
        return self._record("delete", before - self._dataset().count_rows())

    def _record(self, operation: str, rows: int | None) -> Commit:
        self.operations[operation] += 1
        return Commit(self._dataset().version, operation, rows)


def _orders(ids: range, status: str = "new") -> pa.Table:
    rows = [
        {
            "id": row_id,
            "customer": _CUSTOMERS[row_id % len(_CUSTOMERS)],
            "country": _COUNTRIES[row_id % len(_COUNTRIES)],
            "status": status,
            "amount": Decimal(row_id % 400) + Decimal("0.99"),
        }
        for row_id in ids
    ]
    return pa.Table.from_pylist(rows, _SCHEMA)


def _rows(table: pa.Table) -> _Rows:
    return Counter(zip(*(table[name].to_pylist() for name in _SCHEMA.names), strict=True))
