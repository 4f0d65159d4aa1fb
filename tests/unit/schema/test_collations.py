"""Collations: known on every level, refused in conditions and expressions, and values pass through as they are."""

import json
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.errors import ConfigError
from tailer.formats.delta.schema import arrow_schema
from tailer.plan import output_schema
from tailer.schema.changes import describe_changes
from tailer.schema.columns import restated
from tailer.schema.text_types import collations
from tailer.shape.parse.texts import parse_condition, parse_select
from tests.support.cases import cases

MAPPED: Final = "delta.columnMapping.physicalName"
LCASE: Final = "spark.UTF8_LCASE"


def field(name: str, kind: Any, **collated: str) -> dict[str, Any]:
    paths = {path.replace("__", "."): name for path, name in collated.items()}
    metadata = {MAPPED: f"col-{name}"} | ({"__COLLATIONS": paths} if paths else {})
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


ARRAY: Final = {"type": "array", "elementType": "string", "containsNull": True}
MAP: Final = {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True}
INNER: Final = struct(field("t", "string", t=LCASE), field("u", "string"))
SCHEMA: Final = struct(
    field("s", "string", s=LCASE),
    field("icu", "string", icu="icu.de_CI_AI.75.1"),
    field("trimmed", "string", trimmed="spark.UTF8_BINARY_RTRIM"),
    field("plain", "string", plain="spark.UTF8_BINARY"),
    field("a", ARRAY, a__element=LCASE),
    field("k", MAP, k__key=LCASE),
    field("v", MAP, v__value=LCASE),
    field("n", INNER),
    field("d", {"type": "array", "elementType": INNER, "containsNull": True}),
    field("id", "long"),
)


def schema(delta: dict[str, Any] = SCHEMA) -> pa.Schema:
    return arrow_schema(json.dumps(delta), "name", "t", 0)


def test_collations_on_every_level() -> None:
    found = schema()
    assert {each.name: collations(each) for each in found if collations(each)} == {
        "s": [LCASE],
        "icu": ["icu.de_CI_AI.75.1"],
        "trimmed": ["spark.UTF8_BINARY_RTRIM"],
        **{name: [LCASE] for name in "akvnd"},
    }
    assert output_schema(found).field("s").metadata is None


@cases(
    ("where", "name"),
    [
        ("s = 'abc'", "s"),
        ("id = 1 OR upper(s) > 'A'", "s"),
        ("S IS NULL", "S"),
        ("icu LIKE 'a%'", "icu"),
        ("trimmed IN ('a')", "trimmed"),
        ("n.t = 'a'", "n.t"),
        ("n IS NULL", "n"),
        ("a IS NULL", "a"),
        ("k IS NULL", "k"),
        ("v IS NULL", "v"),
        ("CAST(s AS BINARY) = X'61'", "s"),
    ],
)
def test_conditions_and_expressions_are_refused_by_name(where: str, name: str) -> None:
    for refused in (
        lambda: parse_condition(where, schema()),
        lambda: parse_select(f"{where} AS x", schema()),
    ):
        with pytest.raises(ConfigError, match=rf"(?i){name} has the collation \S+, which is not supported"):
            refused()


def test_other_columns_and_columns_that_only_pass() -> None:
    parse_condition("plain = 'a' AND n.u = 'b'", schema())
    found = parse_select("s AS name, n, k, upper(plain) AS p", schema()).schema
    assert [collations(each) for each in found] == [[LCASE], [LCASE], [LCASE], []]


def test_a_change_of_a_collation_is_reported_and_no_other_change() -> None:
    before = schema(struct(field("s", "string"), field("id", "long")))
    after = schema(struct(field("s", "string", s=LCASE), field("id", "long")))
    for old, new in ((before, after), (after, before)):
        (change,) = describe_changes(old, new)
        assert change.startswith("column s has other collations")
        assert collations(restated(old, new).field("s")) == collations(old.field("s"))
