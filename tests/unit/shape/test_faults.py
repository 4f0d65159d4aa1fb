"""All faults of a text at once: over the columns of a table, and those that need no table."""

import pyarrow as pa

from tailer.shape.parse.texts import condition_faults, select_faults
from tests.support.cases import cases

SCHEMA = pa.schema([("id", pa.int64()), ("country", pa.string()), ("at", pa.timestamp("us", "UTC"))])
NO_TYPE = "have no type in common that is exact, at character"


@cases(
    ("text", "anywhere", "here"),
    [
        ("idd = 1 AND contry = 'x'", [], ["no column idd", "no column contry"]),
        ("upper(contry) = 'X' OR NOT (idd > 1)", [], ["no column contry", "no column idd"]),
        ("lenght(country) = 1 AND nope(idd)", ["function lenght", "function nope"], ["lenght", "nope", "column idd"]),
        ("id RLIKE 'x' AND at RLIKE 'y'", ["not supported", "at character 18"], ["not supported", "at character 18"]),
        ("country > 3", [], [f"string and int {NO_TYPE} 1"]),
        ("'a' = 1 AND idd = 1", [f"string and int {NO_TYPE} 1"], [NO_TYPE, "no column idd"]),
        ("x IN (1, 'a')", [f"int and string {NO_TYPE} 1"], ["no column x"]),
        ("_change_type = 'insert'", ["_change_type is a metadata"], ["_change_type is a metadata"]),
        ("substring(country, 'x') = 'a'", ["'x' is string, where int"], ["'x' is string, where int"]),
        ("id + 'x' = 1", ["'x' is string, where a number"], ["'x' is string, where a number"]),
        (
            "v:a = 1 AND v:b::int = 1",
            ["needs a type"],
            ["needs a type", "no column v, at character 13"],
        ),
        ("coalesce(x, '2024-01-01') > DATE'2024-01-01'", [], ["no column x"]),
        ("if(x, y, 1) = 'a'", [], ["no column x", "no column y"]),
        ("x % 1.5 = 0 AND -y > 1", [], ["no column x", "no column y"]),
    ],
)
def test_conditions(text: str, anywhere: list[str], here: list[str]) -> None:
    for schema, expected in ((None, anywhere), (SCHEMA, here)):
        faults = [str(fault) for fault in condition_faults(text, schema)]
        assert len(faults) == len(expected), faults
        assert all(part in fault for part, fault in zip(expected, faults, strict=True)), faults


@cases(
    ("text", "anywhere", "here"),
    [
        ("idd, upper(contry) AS c, id", [], ["no column idd", "no column contry"]),
        (
            "upper(country), uper(x) AS y",
            ["has no name", "function uper"],
            ["has no name", "function uper", "no column x"],
        ),
        ("* EXCLUDE (contry)", [], ["no column contry"]),
        ("* EXCLUDE (id, country, at)", [], ["leaves no column"]),
        ("id, x AS id", ["two columns id"], ["no column x"]),
        ("id AS _change_type", ["metadata column _change_type"], ["metadata column _change_type"]),
        ("NULL AS note, coalesce(a, b) AS c", [], ["a null needs a type", "no column a", "no column b"]),
        ("*, NULL AS id", [], ["two columns id"]),
    ],
)
def test_lists_of_columns(text: str, anywhere: list[str], here: list[str]) -> None:
    for schema, expected in ((None, anywhere), (SCHEMA, here)):
        faults = [str(fault) for fault in select_faults(text, schema)]
        assert len(faults) == len(expected), faults
        assert all(part in fault for part, fault in zip(expected, faults, strict=True)), faults
