"""Conditions and projections of SQL: the answer for rows together is the answer for each row alone."""

from typing import Any

import pyarrow as pa

from tailer.shape.condition import Condition
from tailer.shape.parse.texts import parse_condition, parse_select
from tests.fuzz.target import Target, outcome

_ROWS = pa.RecordBatch.from_pylist(
    [
        {"i": 1, "s": "a", "d": 1.5, "flag": True, "n": {"x": 1}},
        {"i": -1, "s": "b%", "d": float("nan"), "flag": False, "n": None},
        {"i": None, "s": None, "d": None, "flag": None, "n": {"x": None}},
    ],
    pa.schema(
        [("i", pa.int64()), ("s", pa.string()), ("d", pa.float64()), ("flag", pa.bool_())]  # noqa: RUF005
        + [("n", pa.struct([("x", pa.int64())]))]
    ),
)
_CONDITIONS = """\
i = 1
NOT flag OR i > 0 AND s LIKE 'a%'
i BETWEEN -1 AND 2L
s IN ('a', NULL) AND n.x IS NOT NULL
cast(s AS bigint) + 1 * 2 % 3 < d / 2
coalesce(i, 0) <=> abs(-1)
substring(upper(s), 1, 2) = X'61' OR DATE'2024-02-29' < TIMESTAMP '2024-02-29 13:30:00'
CASE WHEN flag THEN i ELSE 0 END = 1.50
*, i + 1 AS j, lower(s) AS t
* EXCEPT (s), n.x
"""


def _seeds() -> list[bytes]:
    return [line.encode() for line in _CONDITIONS.splitlines()]


def _masks(condition: Condition, rows: pa.RecordBatch) -> list[Any] | None:
    return outcome(lambda: condition.mask(rows).to_pylist())


def _run(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    outcome(lambda: parse_select(text, _ROWS.schema))
    condition = outcome(lambda: parse_condition(text, _ROWS.schema))
    if condition is None:
        return
    again = Condition.from_text(condition.to_text())
    assert again == condition
    together = _masks(condition, _ROWS)
    alone = [_masks(again, _ROWS.slice(at, 1)) for at in range(_ROWS.num_rows)]
    assert together == (None if None in alone else [answer for answers in alone for answer in answers or ()])


TARGET = Target(
    _run,
    _seeds,
    tuple(
        f"tailer.shape.{name}"
        for name in (
            "condition", "select", "parse.source", "parse.bind", "parse.binding", "parse.literals", "parse.operators",
            "parse.signatures", "parse.texts",
        )
    ),
)  # fmt: skip
