"""Paths into Variants in expressions, held against Spark: the same value for every Variant, path and type.

`NO_RULE` are the values for which an expression fails although Spark converts them.
"""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pytest

import tailer
import tailer.spark
from tailer.events import VARIANT
from tailer.shape.evaluate import compiled
from tailer.shape.parse.texts import parse_condition
from tailer.shape.tree import BatchRows, Call
from tests.support.spark.table import Table

NUMBERS: Final = [
    *("1", "-1", "127Y", "128S", "2147483647", "2147483648", "-2147483649", "9223372036854775807"),
    *("-9223372036854775808", "0", "1.50", "-2.5", "100.00", "0.00", "1200.0", "99999999.995", "0.0000001"),
    *("12345678901234567890.5", "0.000000000000000000001", "9223372036854775807.5", "9223372036854775808.1"),
    *("true", "false"),
]
FLOATS: Final = [
    *("0.0D", "-0.0D", "1.5D", "-1.5D", "5e-324D", "1e300D", "9.3e18D", "9.223372036854775807e18D", "1.5F", "3e9F"),
    *("-9.223372036854775808e18D", "2147483647.9D", "-2147483648.9D", "2147483648D"),
]
TEXTS: Final = [
    *("", "a", " 12 ", "+7", "-0", "1.5", "1e3", "-.5", "5.", ".", "1e", "1e400", "true", " Y", "OFF", "no", "\\t9\\n"),
    *("9223372036854775808", "99999999.995", "2024-02-29", " 2024-02-29 ", "2023-02-29", "0000-01-01", "2024-13-01"),
    *("2024-02-29 12:30:00.5", "2024-02-29T12:30:00Z", "2024-02-29 24:00:00", "2024-02-29 12:30:60", "x2024", "soon"),
    *("\\u00e9", "\\u2003x", "--1", "1_000", "0x1F", "- 1", "naan", "TRUE\\u007f", "1e-400", "12345678901234567890.5"),
]
TIMES: Final = [
    *("DATE'2024-02-29'", "DATE'0001-01-01'", "DATE'9999-12-31'", "TIMESTAMP'2024-02-29 12:30:00.000005'"),
    *(
        "TIMESTAMP'1969-12-31 23:59:59.5'",
        "TIMESTAMP_NTZ'1883-11-18 12:03:58.25'",
        "TIMESTAMP_NTZ'2024-02-29 00:00:00'",
    ),
]
OTHERS: Final = ["X'6162'", "array(1, 2)", "named_struct('x', 1)", "CAST(NULL AS int)"]
VALUES: Final = [*NUMBERS, *FLOATS, *(f"'{text}'" for text in TEXTS), *TIMES, *OTHERS]
KINDS: Final = ["string", "int", "bigint", "double", "boolean", "decimal(10,2)", "decimal(38,0)", "date", "timestamp"]
MOMENTS: Final = {each for each in TIMES if each.startswith("TIMESTAMP")}
FOREIGN: Final = {"'\\u00e9'", "'\\u2003x'"}
LIKE_DATES: Final = FOREIGN | {
    *("' 12 '", "'+7'", "'- 1'", "'--1'", "'-.5'", "'-0'", "'0000-01-01'", "'0x1F'", "'1.5'", "'1_000'", "'1e'"),
    *("'1e-400'", "'1e3'", "'1e400'", "'5.'", "'9223372036854775808'", "'99999999.995'", "'\\t9\\n'"),
    "'12345678901234567890.5'",
}
NO_RULE: Final = {
    "string": {*FLOATS, "an object", "array(1, 2)", "named_struct('x', 1)"},
    **dict.fromkeys(["int", "bigint", "boolean"], MOMENTS),
    "double": {*MOMENTS, *FOREIGN, "'0x1F'", "'OFF'", "'naan'", "'no'", "'soon'", "'x2024'"},
    **{kind: {*FLOATS, *MOMENTS, *FOREIGN, "'1e-400'", "'1e400'"} for kind in ("decimal(10,2)", "decimal(38,0)")},
    "date": {
        *LIKE_DATES,
        *("'2024-02-29 12:30:00.5'", "'2024-02-29 12:30:60'", "'2024-02-29 24:00:00'", "'2024-02-29T12:30:00Z'"),
    },
    "timestamp": {*LIKE_DATES, *NUMBERS, *FLOATS, "'x2024'"},
}
FORCED: Final = "spark.sql.variant.forceShreddingSchemaForTest"
PUSHED: Final = "spark.sql.variant.pushVariantIntoScan"
SHREDDED: Final = "'delta.enableVariantShredding' = 'true'"
PATHS: Final = [
    "$",
    "$.a",
    "$.a.b",
    "$['a']['b']",
    "$.c[0]",
    "$.c[1].b",
    "$.c[7]",
    "$.A.b",
    "$.none.b",
    "$.c.b",
    "$.a[0]",
]


@pytest.fixture(params=["plain", "shredded"])
def variants(request: pytest.FixtureRequest, table: Table) -> Iterator[Table]:
    """A table with every value at `$.a.b` of a row, in files that are shredded or not."""
    is_shredded = request.param == "shredded"
    rows = ", ".join(
        f"({at}, to_variant_object(named_struct('a', {field}, 'c', array({field}))))"
        for at, field in enumerate(f"named_struct('b', {value})" for value in VALUES)
    )
    rows += f", ({len(VALUES)}, NULL), ({len(VALUES) + 1}, parse_json('null')), ({len(VALUES) + 2}, parse_json('7'))"
    if is_shredded:
        table.spark.conf.set(FORCED, "a struct<b bigint>, c array<struct<b string>>")
    try:
        select = f"SELECT CAST(id AS BIGINT) AS id, v FROM VALUES {rows} AS t(id, v)"
        table.create("id BIGINT, v VARIANT", select, properties=SHREDDED if is_shredded else "")
    finally:
        table.spark.conf.unset(FORCED)
    table.spark.conf.set(PUSHED, "false")  # Spark fails where it is true
    yield table
    table.spark.conf.unset(PUSHED)


def plain(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return values; of dates and timestamps the days and microseconds: Python has not all of them."""
    counts = {pa.date32(): pa.int32(), pa.timestamp("us", "UTC"): pa.int64()}.get(values.type)
    return list((values if counts is None else values.cast(counts)).to_pylist())


def ours(text: str, rows: pa.RecordBatch) -> list[Any]:
    """Return the value of an expression for each row; the error's text where it fails for one."""
    is_null = parse_condition(f"({text}) IS NULL", rows.schema).expression
    assert isinstance(is_null, Call)
    evaluate = compiled(is_null.arguments[0])
    found: list[Any] = []
    for at in range(len(rows)):
        try:
            found += plain(evaluate(BatchRows(rows.slice(at, 1))))
        except pa.ArrowInvalid as error:
            found.append(error)
    return found


def test_values_are_sparks(variants: Table) -> None:
    read = pa.Table.from_batches(list(tailer.changes(str(variants.path), start=0, columns=["id", "v"])))
    rows = read.sort_by("id").select(["id", "v"]).combine_chunks().to_batches()[0]
    assert rows.schema.field("v").type == VARIANT
    wrong: list[str] = []
    unclear: dict[str, set[str]] = {}
    named = [*VALUES, "NULL", "null", "7"]
    listed = [(path, kind) for kind in KINDS for path in (PATHS if kind == "string" else ["$.a.b", "$.c[0].b"])]
    for (path, kind), theirs, is_there in zip(listed, *sparks(variants, listed), strict=True):
        mine, strict = (ours(f"{name}(v, \"{path}\", '{kind}')", rows) for name in ("try_variant_get", "variant_get"))
        for value, found, known, there, raised in zip(named, mine, theirs, is_there, strict, strict=True):
            at = f"{kind} at {path} of {value}"
            if isinstance(found, Exception):
                unclear.setdefault(kind, set()).add(value if path.endswith("b") else "an object")
                assert isinstance(raised, Exception), at
            elif str(found) != str(known):
                wrong.append(f"{at}: {found!r}, Spark: {known!r}")
            elif isinstance(raised, Exception) is not (found is None and there):
                wrong.append(f"{at}: variant_get gives {raised!r}")
    assert not wrong, "\n".join(wrong)
    assert unclear == NO_RULE


def sparks(table: Table, listed: list[tuple[str, str]]) -> tuple[list[list[Any]], list[list[bool]]]:
    """Return Spark's values at paths as types, and whether there is anything but null."""
    values = [f"try_variant_get(v, \"{path}\", '{kind}')" for path, kind in listed]
    anything = [f"variant_get(v, \"{path}\", 'variant')" for path, _ in listed]
    there = [f"{each} IS NOT NULL AND NOT is_variant_null({each})" for each in anything]
    asked = f"SELECT {', '.join(values + there)} FROM delta.`{table.path}` ORDER BY id"
    columns = [plain(column) for column in table.spark.sql(asked).toArrow().columns]
    return columns[: len(listed)], columns[len(listed) :]


def test_rows_are_the_same_on_every_path(variants: Table) -> None:
    spark, path = variants.spark, variants.path
    texts = f"id BETWEEN {VALUES.index(repr(''))} AND {VALUES.index(TIMES[0]) - 1}"
    where = f"id < 20 AND v:a.b::string LIKE '%1%' OR {texts} AND try_variant_get(v, '$.c[0].b', 'int') = 9"
    by_function = where.replace("v:a.b::string", "variant_get(v, '$.a.b', 'string')")
    for text in (where, by_function):
        answer = spark.sql(f"SELECT id FROM delta.`{path}` WHERE {text} ORDER BY id").toArrow()
        wanted = answer["id"].to_pylist()
        assert len(wanted) > 3
        read = pa.Table.from_batches(list(tailer.changes(str(path), start=0, where=text, columns=["id"])))
        assert sorted(read["id"].to_pylist()) == wanted
        tailer.spark.register(spark)
        source = spark.read.format("tailer").options(startingVersion=0, where=text).load(str(path))
        for frame in (source, tailer.spark.changes(spark, path, where=text)):
            assert sorted(frame.select("id").toArrow()["id"].to_pylist()) == wanted
    select = "id, CASE WHEN id < 20 THEN v:a.b::decimal(38,2) END AS number"
    made = pa.Table.from_batches(list(tailer.changes(str(path), start=0, where=where, select=select))).sort_by("id")
    by_spark = select.replace("v:a.b::decimal(38,2)", "variant_get(v, '$.a.b', 'decimal(38,2)')")
    rows = spark.sql(f"SELECT {by_spark} FROM delta.`{path}` WHERE {by_function} ORDER BY id").toArrow()
    assert made.select(["id", "number"]).to_pylist() == rows.to_pylist()
