"""Differences that are planted in a mirror in Delta of the table of `planted`."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import write_deltalake

from tests.support.mirrors.delta import mirror_rows

__all__ = ["EQUAL", "PLANTED", "SUPERFLUOUS", "plant"]

# What is done to rows of the mirror, by id: other values. None: the row is removed.
PLANTED: Final[dict[int, dict[str, Any] | None]] = {
    3: None,
    4: {"amount": Decimal("4.26")},
    5: {"ratio": -0.0},
    6: {"code": ""},
    7: {"code": None},
    8: {"code": "c9"},
    9: {"code": "c8"},
    11: {"n": 11},
    12: {"code": "c12 "},
    13: {"code": "C13"},
    14: {"flag": False},
    15: {"n": 16},
    16: {"ratio": 1.6000000000000003},
    17: {"small": 1.7000002},
    18: {"data": b"\1"},
    19: {"day": date(2026, 3, 2)},
    20: {"moment": datetime(2026, 3, 1, 12, 0, 20, 1, UTC)},
    21: {"tags": ["b", "a"]},
    22: {"tags": ["a", "b", None]},
    23: {"attr": {"a": 23, "b": "y"}},
    24: {"attr": {"a": 24, "b": "24"}},
    25: {"props": [("k", 26)]},
    26: {"props": [("k", 26), ("l", None)]},
    27: {"code": "x", "flag": None},
    31: {"local": datetime(2026, 3, 1, 12, 0, 31, 1)},  # noqa: DTZ001 - it has no zone
    32: {"ratio": float("nan")},
    33: {"ratio": 3.3},
    34: {"ratio": 0.0},
    35: {"n": None},
    36: {"n": 0},
    39: {"items": [{"sku": "s", "sizes": [1, 3]}]},
    40: {"tags": []},
    41: {"tags": None},
    42: {"code": "e\N{COMBINING ACUTE ACCENT}"},
    43: {"amount": Decimal("-43.25")},
    44: {"day": date(1926, 3, 1)},
    47: {"attr": None},
}
EQUAL: Final[dict[int, dict[str, Any] | None]] = {48: {}, 49: {"props": [("k", 49)]}}
SUPERFLUOUS: Final = {"id": 1000, "code": "x"}


def plant(path: Path, changes: Mapping[int, dict[str, Any] | None], *more: Mapping[str, Any]) -> None:
    """Write the rows of a mirror again, some of them changed."""
    rows = mirror_rows(path)
    kept = []
    for row in rows.to_pylist():
        change = changes.get(row["id"], {})
        if change is not None:
            kept.append({**row, **change})
    write_deltalake(path, pa.Table.from_pylist([*kept, *more], rows.schema), mode="overwrite")
