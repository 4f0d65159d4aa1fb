"""Tables with VARIANT columns, written by Spark: change feed, vectors, MERGE, OPTIMIZE, shredded files and others.

Each is judged by the fold over Spark's snapshots and by its feed, like the other cases; decoded Variants are compared.

On every landing: what Spark wrote, recorded (`property/test_written_cases.py`).
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Final

import pyarrow.parquet as pq
import pytest

from tailer_sinks.encoding import FlatEncoder
from tailer_sinks.encoding.values import JsonForms
from tests.support.follow import snapshot
from tests.support.spark.table import Table, kinds

# Spark writes it again in `make nightly`; what it wrote is read in `test_written_cases.py`.
recorded = pytest.mark.nightly

SHREDDED: Final = "'delta.enableVariantShredding' = 'true'"
MAPPED: Final = "'delta.columnMapping.mode' = 'name'"
# A null, the Variant null, objects with a field of two types, an array, and a value of every type that Spark casts.
VALUES: Final = """
CASE id
  WHEN 0 THEN NULL
  WHEN 1 THEN parse_json('null')
  WHEN 2 THEN parse_json('[1, "two", null, {"a": 3}]')
  WHEN 3 THEN to_variant_object(named_struct('t', TIMESTAMP'2026-01-02 03:04:05.678901', 'd', 1.50BD,
    'n', TIMESTAMP_NTZ'2026-01-02 03:04:05', 'y', DATE'2026-01-02', 'x', X'00FF', 'b', true, 'f', 1.5F, 'g', -0.0D))
  WHEN 4 THEN parse_json('{"a": "text", "b": {"c": []}}')
  ELSE parse_json('{"a": ' || id || ', "b": {"c": [' || id || ']}, "s": "' || repeat('x', 70) || '"}')
END
"""
NESTED: Final = """
SELECT id, IF(id = 2, NULL, named_struct('v', v, 'n', id)) AS s, array(v, parse_json('1'), NULL) AS l,
  IF(id = 3, NULL, map('k', v, 'none', NULL)) AS m
"""
UPDATE: Final = """UPDATE {t} SET v = parse_json('{"a": 1}') WHERE id IN (0, 6)"""
DELETE: Final = "DELETE FROM {t} WHERE id = 2"
MERGE: Final = (
    f"MERGE INTO {{t}} USING (SELECT id, {VALUES} AS v FROM range(7, 12)) n ON {{t}}.id = n.id "
    "WHEN MATCHED AND n.id = 7 THEN DELETE WHEN MATCHED THEN UPDATE SET v = parse_json('2.50') "
    "WHEN NOT MATCHED THEN INSERT *"
)
FORCED: Final = "spark.sql.variant.forceShreddingSchemaForTest"


@contextmanager
def forced(table: Table, schema: str) -> Iterator[None]:
    """Let Spark shred to this schema, whatever the values are."""
    table.spark.conf.set(FORCED, schema)
    try:
        yield
    finally:
        table.spark.conf.unset(FORCED)


def forms(table: Table) -> set[tuple[str, ...] | None]:
    """Return the fields to which the Variants of each data file are shredded; None for a file without shredding."""
    columns = (pq.read_schema(file).field("v").type for file in table.path.rglob("part-*.parquet"))
    typed = (column.field("typed_value").type if len(column) == 3 else None for column in columns)
    return {None if kind is None else tuple(kind.field(at).name for at in range(kind.num_fields)) for kind in typed}


def is_shredded(table: Table) -> set[bool]:
    """Return whether the data files of the table have shredded Variants: both if some have and some have not."""
    files = [file for file in table.path.rglob("*.parquet") if "_delta_log" not in file.parts]
    return {"typed_value" in str(pq.read_schema(file)) for file in files}


@pytest.mark.parametrize("feed", [False, True], ids=["files", "feed"])
@pytest.mark.parametrize("vectors", [False, True], ids=["copies", "vectors"])
@pytest.mark.parametrize("properties", ["", SHREDDED], ids=["plain", "shredded"])
@recorded
def test_variants(table: Table, feed: bool, vectors: bool, properties: str) -> None:
    table.create("id BIGINT, v VARIANT", f"SELECT id, {VALUES} FROM range(9)", feed, vectors, properties=properties)
    for statement in (UPDATE, DELETE, MERGE, "OPTIMIZE {t}"):
        table.sql(statement)
    assert (True in is_shredded(table)) == bool(properties)
    versions = table.check(feed_from=0 if feed else None, by_spark=True)
    assert [bool(kinds(version)) for version in versions[:5]] == [False, True, True, True, True]
    assert not any(kinds(version) for version in versions[5:])


@pytest.mark.parametrize("feed", [False, True], ids=["files", "feed"])
@pytest.mark.parametrize("vectors", [False, True], ids=["copies", "vectors"])
@recorded
def test_forced_shredding(table: Table, feed: bool, vectors: bool) -> None:
    """Most values do not have the types of the schema. Spark cannot write change files with a forced schema."""
    schema = "a int, b struct<c array<int>>, none date"
    with forced(table, schema):
        table.create("id BIGINT, v VARIANT", f"SELECT id, {VALUES} FROM range(9)", feed, vectors, properties=SHREDDED)
    with nullcontext() if feed else forced(table, schema):
        for statement in (UPDATE, DELETE, MERGE):
            table.sql(statement)
    with forced(table, schema):
        table.sql("OPTIMIZE {t}")
    assert (forms(table) == {("a", "b", "none")}) is not feed
    table.check(feed_from=0 if feed else None, by_spark=True)


@pytest.mark.parametrize("feed", [False, True], ids=["files", "feed"])
@pytest.mark.parametrize("vectors", [False, True], ids=["copies", "vectors"])
@recorded
def test_mixed_shredding(table: Table, feed: bool, vectors: bool) -> None:
    """Files are shredded by their values, by force in two ways, and not at all."""
    table.create("id BIGINT, v VARIANT", f"SELECT id, {VALUES} FROM range(9)", feed, vectors, properties=SHREDDED)
    for number, schema in enumerate(["a string", "b struct<c array<int>>, a bigint"]):
        with forced(table, schema):
            table.sql(f"INSERT INTO {{t}} SELECT id + {9 + 6 * number}, {VALUES} FROM range(6)")
    table.sql(UPDATE)
    table.sql(MERGE)
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableVariantShredding' = 'false')")
    table.sql("DELETE FROM {t} WHERE id IN (2, 10, 16)")
    table.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({SHREDDED})")
    table.sql("OPTIMIZE {t}")
    assert {("a",), ("b", "a"), None} <= forms(table)
    table.check(feed_from=0 if feed else None, by_spark=True)


@recorded
def test_shredding_enabled_and_disabled(table: Table) -> None:
    table.create("id BIGINT, v VARIANT", f"SELECT id, {VALUES} FROM range(6)")
    table.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({SHREDDED})")
    table.sql(f"INSERT INTO {{t}} SELECT id, {VALUES} FROM range(6, 9)")
    table.sql("UPDATE {t} SET id = id + 100 WHERE id % 2 = 0")
    assert is_shredded(table) == {False, True}
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableVariantShredding' = 'false')")
    table.sql("UPDATE {t} SET id = id + 100 WHERE id > 5")
    table.check(by_spark=True)


@pytest.mark.parametrize("properties", ["", SHREDDED], ids=["plain", "shredded"])
@recorded
def test_nested_variants(table: Table, properties: str) -> None:
    columns = "id BIGINT, s STRUCT<v: VARIANT, n: BIGINT>, l ARRAY<VARIANT>, m MAP<STRING, VARIANT>"
    rows = f"{NESTED} FROM (SELECT id, {VALUES} AS v FROM range(7))"
    table.create(columns, rows, properties=", ".join(filter(None, [MAPPED, properties])))
    table.sql("ALTER TABLE {t} RENAME COLUMN s.v TO value")
    table.sql("UPDATE {t} SET s = named_struct('value', parse_json('[{}]'), 'n', 0L) WHERE id < 3")
    table.sql("DELETE FROM {t} WHERE id = 4")
    table.check(feed_from=3, by_spark=True)


@recorded
def test_variants_added_and_dropped(table: Table) -> None:
    table.create("id BIGINT, p STRING", "SELECT id, 'x' FROM range(3)", partition="p", properties=MAPPED)
    table.sql("ALTER TABLE {t} ADD COLUMN v VARIANT")
    table.sql("""INSERT INTO {t} VALUES (3, 'y', parse_json('{"a": 1}'))""")
    table.sql("UPDATE {t} SET id = id + 10 WHERE id > 1")
    table.sql("ALTER TABLE {t} RENAME COLUMN v TO w")
    table.sql("ALTER TABLE {t} DROP COLUMN w")
    table.sql("DELETE FROM {t} WHERE id = 0")
    table.check(feed_from=None, by_spark=True)


def test_json_is_that_of_spark(table: Table) -> None:
    """Of the types that have one form in JSON everywhere; Spark's decimals are numbers."""
    values = ("null", '{"b": [1, -2, {"é": "\\u0000"}], "a": true, "": {}}', '"text"', "12.50", "[]", "1e300")
    rows = " UNION ALL ".join(f"SELECT {n} AS id, parse_json(r'{text}') AS v" for n, text in enumerate(values))
    table.create("id INT, v VARIANT", rows, properties=SHREDDED)
    found = snapshot(table.path, 1).table.sort_by("id")
    lines = FlatEncoder("test", found.schema, JsonForms(decimal="number")).lines(found.combine_chunks().to_batches()[0])
    asked = table.spark.sql(f"SELECT to_json(v) AS text FROM delta.`{table.path}` ORDER BY id").collect()
    ours = [json.loads(line)["v"] for line in lines.to_pybytes().splitlines()]
    assert ours == [json.loads(row.text) for row in asked]
