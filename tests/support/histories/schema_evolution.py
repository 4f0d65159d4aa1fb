"""Random histories with changing tables: columns, types, names, properties, and table ids.

Like `tests.support.histories.random_history`, a function of seed and shape. The state of the table is read from its
log, so RESTORE and REPLACE need no bookkeeping here. The types of the columns determine the expressions that make rows.
Spark's answer is recorded right after each version, while that is the latest: only then does its change feed use the
right schema. Refusals by Spark are recorded, not hidden.

Commit files are dated `STEP` seconds apart from `EPOCH` on: old enough for log cleanup, and the same in every copy.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tailer.plan import output_schema
from tests.support.histories.random_history import PARTITION_VALUES, History, Shape
from tests.support.oracle.column_identity import Schema
from tests.support.oracle.rows import spark_feed
from tests.support.spark.sql_types import literal, maker, paths, quoted, sql_type

__all__ = ["EVOLVING", "Answer", "EvolvingHistory"]

EPOCH: Final = 1_750_000_000
STEP: Final = 60

_PROPERTIES: Final = {
    "names": ("delta.columnMapping.mode", "name"),
    "ids": ("delta.columnMapping.mode", "id"),
    "widening": ("delta.enableTypeWidening", "true"),
    "v2 checkpoints": ("delta.checkpointPolicy", "v2"),
    "row tracking": ("delta.enableRowTracking", "true"),
}
_SETTINGS: Final = {
    "parts": ("spark.databricks.delta.checkpoint.partSize", "6"),
    "parquet": ("spark.databricks.delta.checkpointV2.topLevelFileFormat", "parquet"),
}

# Not all of Delta's own exceptions arrive as Spark's.
REFUSALS: Final = (PySparkException, Py4JJavaError)

_START: Final = (
    "id BIGINT, small TINYINT, name STRING, n INT, amount DECIMAL(8,2), p STRING, day DATE, ratio FLOAT, "
    "nested STRUCT<a: SMALLINT, b: ARRAY<STRUCT<x: INT, y: STRING>>>, tags MAP<STRING, INT>, raw BINARY"
)
_ADDED: Final = (
    "INT",
    "STRING",
    "DATE",
    "DECIMAL(6,1)",
    "STRUCT<u: TINYINT, v: STRING>",
    "ARRAY<INT>",
    "TIMESTAMP_NTZ",
    "BOOLEAN",
)
_WIDER: Final = {
    "byte": ("SMALLINT", "INT", "BIGINT", "DOUBLE", "DECIMAL(12,2)"),
    "short": ("INT", "BIGINT", "DOUBLE"),
    "integer": ("BIGINT", "DOUBLE", "DECIMAL(14,3)"),
    "float": ("DOUBLE",),
    "date": ("TIMESTAMP_NTZ",),
    "decimal(8,2)": ("DECIMAL(10,2)", "DECIMAL(12,4)", "DECIMAL(20,6)"),
    "decimal(6,1)": ("DECIMAL(9,3)",),
}
_NUMBERS: Final = ("byte", "short", "integer", "long", "double", "decimal")

# The subjects of the recorded histories: a dozen combinations of table properties and operations.
EVOLVING: Final = (
    Shape(True, True, True, traits=("names", "add", "widening")),
    Shape(True, False, False, traits=("ids", "add", "row tracking", "in-commit timestamps")),
    Shape(False, False, True, traits=("mapping later", "add", "toggle")),
    Shape(True, True, False, traits=("widening", "add", "in-commit timestamps", "parts")),
    Shape(True, True, True, traits=("v2 checkpoints", "row tracking later", "purge", "add")),
    Shape(False, True, False, traits=("parts", "purge", "toggle", "add")),
    Shape(True, False, True, traits=("cleanup", "in-commit timestamps", "add")),
    Shape(True, False, True, traits=("replace", "overwrite schema", "toggle")),
    Shape(False, True, True, traits=("names", "replace", "overwrite schema", "cleanup")),
    Shape(True, True, False, traits=("replace", "row tracking", "widening", "v2 checkpoints")),
    Shape(False, True, False, traits=("ids", "overwrite schema", "widening", "v2 checkpoints", "parquet", "parts")),
    Shape(
        True,
        True,
        True,
        traits=("names", "add", "widening", "v2 checkpoints", "cleanup", "row tracking", "toggle", "purge"),
    ),
)


@dataclass(frozen=True)
class Answer:
    """Spark's answer for a version: all its rows, and its change rows (None: it refuses, with the text `refusal`)."""

    snapshot: pa.Table
    feed: pa.Table | None
    refusal: str | None = None

    @classmethod
    def of(cls, snapshot: pa.Table, feed: pa.Table | None, asked: bool = True) -> "Answer":
        """Return the answer of Spark. If it was `asked` for changes, no changes means no rows."""
        if asked and feed is None:
            return cls(snapshot, output_schema(snapshot.schema).empty_table())
        return cls(snapshot, feed)


def condition(error: Exception) -> str:
    """Return the name that Spark or Delta gives an error, however it came through the bridge."""
    named = error.getCondition() if isinstance(error, PySparkException) else None
    found = re.search(r"\[([A-Z][A-Z_.]+)\]", str(error))
    return named or (found[1] if found else str(error)[:200])


class EvolvingHistory(History):
    """A table with the operations of its shape's `traits`; `answers` has Spark's answer for every version."""

    def __init__(self, spark: SparkSession, path: Path, seed: int, shape: Shape) -> None:
        self.answers: dict[int, Answer] = {}
        self.metadata: dict[int, dict[str, Any]] = {}
        self.refused: list[str] = []
        self._fresh = 0
        super().__init__(spark, path, seed, shape)

    # The state of the table.

    @property
    def schema(self) -> Schema:
        """The newest schema in the log."""
        found: Schema = json.loads(self.metadata[max(self.metadata)]["schemaString"])
        return found

    @property
    def configuration(self) -> dict[str, str]:
        """The newest table properties."""
        return dict(self.metadata[max(self.metadata)]["configuration"])

    @property
    def partitions(self) -> list[str]:
        """The newest partition columns."""
        return list(self.metadata[max(self.metadata)]["partitionColumns"])

    def schema_at(self, version: int) -> Schema:
        """Return the schema of a version."""
        found: Schema = json.loads(self.metadata[version]["schemaString"])
        return found

    def _first(self, *kinds: str) -> str:
        """Return the first column of some types that is neither the key nor a partition column."""
        key = self.schema["fields"][0]["name"]
        taken = {key, *self.partitions}
        return next(
            str(field["name"])
            for field in self.schema["fields"]
            if field["name"] not in taken and str(field["type"]).startswith(kinds)
        )

    def _has(self, trait: str) -> bool:
        return trait in self.shape.traits

    # Operations.

    def _properties(self) -> dict[str, str]:
        given = {"delta.enableChangeDataFeed": self.shape.feed, "delta.enableDeletionVectors": self.vectors}
        properties = {key: str(value).lower() for key, value in given.items()}
        properties |= dict(_PROPERTIES[trait] for trait in self.shape.traits if trait in _PROPERTIES)
        properties["delta.feature.timestampNtz"] = "supported"
        properties["delta.enableExpiredLogCleanup"] = "false"
        if {"v2 checkpoints", "parts", "cleanup"} & set(self.shape.traits):
            properties["delta.checkpointInterval"] = "4"
        return properties

    def _create(self) -> None:
        partitioned = " PARTITIONED BY (p, day)" if self.shape.partitioned else ""
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in self._properties().items())
        self._sql(f"CREATE TABLE {self.table} ({_START}) USING delta{partitioned} TBLPROPERTIES ({properties})")
        self._note("create")

    def run(self, steps: int, then: Callable[[], object] = bool) -> Self:
        """Do every operation of the traits at least once, and random ones up to `steps` in all; `then` after each."""
        special = self._specials()
        plan: list[tuple[str, Callable[[], None]]] = [*special]
        ordinary = self._choices()
        plan += [
            (name, work)
            for name, _, work in self.random.choices(
                ordinary, [weight for _, weight, _ in ordinary], k=max(0, steps - len(special))
            )
        ]
        self.random.shuffle(plan)
        # Log cleanup comes first, because the versions that it removes cannot be judged.
        plan.sort(key=lambda step: step[0] != "clean up log")
        with self._writing():
            for name, operation in plan:
                self._try(name, operation)
                then()
        return self

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Make Spark write checkpoints of the wanted kind. The session is shared, so its settings are restored."""
        wanted = [setting for trait, setting in _SETTINGS.items() if self._has(trait)]
        for key, value in wanted:
            self.spark.conf.set(key, value)
        yield
        for key, _ in wanted:
            self.spark.conf.unset(key)

    def _try(self, name: str, operation: Callable[[], None]) -> None:
        try:
            operation()
        except REFUSALS as error:
            self.refused.append(f"{name}: {condition(error)}")
        self._note(name)

    def _choices(self) -> list[tuple[str, int, Callable[[], None]]]:
        left_out = {"add column", *(() if self.shape.vectors else ("vectors on or off",))}
        return [choice for choice in super()._choices() if choice[0] not in left_out]

    def _specials(self) -> list[tuple[str, Callable[[], None]]]:
        known: dict[str, list[tuple[str, Callable[[], None]]]] = {
            "names": [("rename", self._rename)] * 3 + [("drop", self._drop)] * 2,
            "ids": [("rename", self._rename)] * 2 + [("drop", self._drop)] * 3,
            "mapping later": [("map columns", self._map_columns)],
            "add": [("add column", self._add_column)] * 2 + [("add nested", self._add_nested)] * 2,
            "widening": [("widen", self._widen)] * 6,
            "in-commit timestamps": [("in-commit timestamps", self._set("delta.enableInCommitTimestamps", "true"))],
            "row tracking later": [("row tracking", self._set("delta.enableRowTracking", "true"))],
            "toggle": [("feed on or off", self._toggle_feed)] * 4,
            "purge": [("delete and purge", self._purge)] * 3,
            "replace": [("replace table", self._replace)] * 2,
            "overwrite schema": [("overwrite schema", self._overwrite_schema)] * 3,
            "cleanup": [("clean up log", self._clean_up)],
        }
        return [operation for trait in self.shape.traits for operation in known.get(trait, [])]

    def _set(self, key: str, value: str) -> Callable[[], None]:
        return lambda: self._sql(f"ALTER TABLE {self.table} SET TBLPROPERTIES ('{key}' = '{value}')")

    def _map_columns(self) -> None:
        self._set("delta.columnMapping.mode", "name")()
        self._note("map columns")
        for _ in range(3):
            self._try("rename", self._rename)
            self._try("delete", lambda: self._sql(f"DELETE FROM {self.table} WHERE {self._condition()}"))
            self._try("drop", self._drop)
            self._try("update", self._update)

    def _name(self, stem: str) -> str:
        self._fresh += 1
        return f"{stem} {self._fresh}" if self._mapped and self._fresh % 3 == 0 else f"{stem}_{self._fresh}"

    @property
    def _mapped(self) -> bool:
        return "delta.columnMapping.mode" in self.configuration

    def _fields(self, nested: bool) -> list[tuple[tuple[str, ...], Any]]:
        return [(path, kind) for path, kind in paths(self.schema) if (len(path) > 1) == nested]

    def _rename(self) -> None:
        fields = self._fields(nested=self.random.random() < 0.4) or self._fields(nested=False)
        path, _ = self.random.choice(fields)
        stem = path[-1].split("_")[0].split(" ")[0]
        self._sql(f"ALTER TABLE {self.table} RENAME COLUMN {quoted(*path)} TO {quoted(self._name(stem))}")

    def _drop(self) -> None:
        needed = {self.schema["fields"][0]["name"], self._first("string"), self._first(*_NUMBERS), *self.partitions}
        fields = [path for path, _ in self._fields(nested=self.random.random() < 0.5) if path[0] not in needed]
        if fields:
            self._sql(f"ALTER TABLE {self.table} DROP COLUMN {quoted(*self.random.choice(fields))}")

    def _add_column(self) -> None:
        after = self.random.choice(self.schema["fields"])["name"]
        kind = self.random.choice(_ADDED)
        name = quoted(self._name("extra"))
        self._sql(f"ALTER TABLE {self.table} ADD COLUMNS ({name} {kind} AFTER {quoted(after)})")

    def _add_nested(self) -> None:
        structs = [
            path if kind["type"] == "struct" else (*path, "element")
            for path, kind in paths(self.schema)
            if not isinstance(kind, str)
            and (kind["type"] == "struct" or (kind["type"] == "array" and isinstance(kind["elementType"], dict)))
        ]
        if structs:
            path = (*self.random.choice(structs), self._name("inner"))
            self._sql(f"ALTER TABLE {self.table} ADD COLUMNS ({quoted(*path)} {self.random.choice(_ADDED)})")

    def _widen(self) -> None:
        fields = [
            (path, kind)
            for path, kind in paths(self.schema)
            if isinstance(kind, str) and kind in _WIDER and path[0] not in self.partitions[:1]
        ]
        if fields:
            path, kind = self.random.choice(fields)
            wider = self.random.choice(_WIDER[kind])
            self._sql(f"ALTER TABLE {self.table} ALTER COLUMN {quoted(*path)} TYPE {wider}")

    def _toggle_feed(self) -> None:
        on = self.configuration.get("delta.enableChangeDataFeed") == "true"
        self._set("delta.enableChangeDataFeed", str(not on).lower())()
        self._note("feed on or off")
        self._try("update", self._update)

    def _toggle_vectors(self) -> None:
        on = self.configuration.get("delta.enableDeletionVectors") == "true"
        self._set("delta.enableDeletionVectors", str(not on).lower())()

    def _purge(self) -> None:
        key = quoted(self.schema["fields"][0]["name"])
        self._sql(f"DELETE FROM {self.table} WHERE pmod({key}, 5) = {self.random.randrange(5)}")
        self._note("delete")
        self._sql(f"REORG TABLE {self.table} APPLY (PURGE)")

    def _replace(self) -> None:
        """`CREATE OR REPLACE` with other columns, and another partition column or none."""
        view = f"rows_{id(self)}"
        self._some_rows().createOrReplaceTempView(view)
        fields = self.schema["fields"]
        chosen = [fields[0]["name"], self._first("string"), self._first(*_NUMBERS)]
        chosen += [f["name"] for f in fields[1:] if f["name"] not in chosen and self.random.random() < 0.6]
        atoms = [
            f["name"] for f in fields[1:] if f["name"] in chosen[3:] and f["type"] in ("string", "date", "integer")
        ]
        partition = f"PARTITIONED BY ({quoted(self.random.choice(atoms))})" if atoms else ""
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in self._properties().items())
        columns = ", ".join(quoted(name) for name in chosen)
        self._sql(
            f"CREATE OR REPLACE TABLE {self.table} USING delta {partition} TBLPROPERTIES ({properties}) "
            f"AS SELECT {columns}, 1 AS {quoted(self._name('made'))} FROM {view}"
        )
        self.spark.catalog.dropTempView(view)

    def _overwrite_schema(self) -> None:
        """Overwrite the table without a column, with another type for one, and with other partitioning."""
        rows = self._some_rows()
        fields = self.schema["fields"]
        needed = [fields[0]["name"], self._first("string"), self._first(*_NUMBERS)]
        spare = [field["name"] for field in fields if field["name"] not in needed]
        dropped = self.random.choice(spare) if spare else None
        retyped = self.random.choice([f["name"] for f in fields if f["name"] not in {*needed, dropped}] or [None])
        kept = [f["name"] for f in fields if f["name"] != dropped]
        shown = [f"to_json(struct({quoted(n)})) AS {quoted(n)}" if n == retyped else quoted(n) for n in kept]
        atoms = [f["name"] for f in fields[1:] if f["name"] in kept and f["type"] in ("string", "date")]
        writer = rows.selectExpr(*shown).write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.partitionBy(*self.random.sample(atoms, min(max(len(atoms) - 1, 0), 1))).save(str(self.path))

    def _clean_up(self) -> None:
        """Let the next checkpoint remove the log before it."""
        self._set("delta.enableExpiredLogCleanup", "true")()
        self._note("clean up log")
        for _ in range(5):
            self._try("insert", self._insert)
        self._set("delta.enableExpiredLogCleanup", "false")()
        self.restorable = min(int(file.stem) for file in (self.path / "_delta_log").glob("[0-9]" * 20 + ".json"))

    # The ordinary operations, for any columns.

    def _rows(self, first: int, last: int) -> DataFrame:
        salt = self.random.randrange(1 << 20)
        key, *others = self.schema["fields"]
        made = [f"id AS {quoted(key['name'])}"]
        for field in others:
            value = maker(field["type"], f"{salt}{field['name']}")
            if field["name"] in self.partitions and field["type"] == "string":
                options = ", ".join(literal(option) for option in PARTITION_VALUES)
                value = (
                    f"element_at(array({options}), CAST(pmod(hash(id, {salt}), {len(PARTITION_VALUES)}) AS INT) + 1)"
                )
            made.append(f"CAST({value} AS {sql_type(field['type'])}) AS {quoted(field['name'])}")
        return self.spark.range(first, last, 1, 2).selectExpr(*made)

    def _condition(self) -> str:
        key = quoted(self.schema["fields"][0]["name"])
        modulus = self.random.randint(2, 9)
        conditions = [
            f"pmod({key}, {modulus}) = {self.random.randrange(modulus)}",
            f"{key} < {self.random.randrange(40)}",
            f"{quoted(self._first('string'))} IS NULL",
            f"{quoted(self._first(*_NUMBERS))} > {self.random.randrange(100)}",
        ]
        conditions += [f"{quoted(name)} IS NULL" for name in self.partitions]
        conditions += [
            f"{quoted(name)} = '{self.random.choice(PARTITION_VALUES[:4])}'" for name in self._text_partitions()
        ]
        return self.random.choice(conditions)

    def _text_partitions(self) -> list[str]:
        text = {field["name"] for field in self.schema["fields"] if field["type"] == "string"}
        return [name for name in self.partitions if name in text]

    def _update(self) -> None:
        name, number = quoted(self._first("string")), quoted(self._first(*_NUMBERS))
        changes = [f"{name} = concat('u', {number})", f"{name} = NULL", f"{number} = NULL"]
        value = literal(self.random.choice(PARTITION_VALUES))
        changes += [f"{quoted(partition)} = {value}" for partition in self._text_partitions()]
        changes += [
            f"{quoted(*path)} = {maker(kind, 'u').replace('(id,', f'({number},')}"
            for path, kind in paths(self.schema)
            if path[0] not in self.partitions and len(path) > 1 and "element" not in path
        ]
        self._sql(f"UPDATE {self.table} SET {self.random.choice(changes)} WHERE {self._condition()}")

    def _merged(self, clauses: str) -> None:
        view = f"source_{id(self)}"
        self._some_rows().createOrReplaceTempView(view)
        key = quoted(self.schema["fields"][0]["name"])
        try:
            self._sql(f"MERGE INTO {self.table} t USING {view} s ON t.{key} = s.{key} {clauses}")
        finally:
            self.spark.catalog.dropTempView(view)

    def _merge(self) -> None:
        number = quoted(self._first(*_NUMBERS))
        clauses = f"WHEN MATCHED AND s.{number} % 3 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET *"
        clauses += " WHEN NOT MATCHED THEN INSERT *"
        if self.random.random() < 0.4:
            name = quoted(self._first("string"))
            clauses += f" WHEN NOT MATCHED BY SOURCE AND t.{number} % 4 = 0 THEN UPDATE SET {name} = 'left'"
        self._merged(clauses)

    def _merge_inserts(self) -> None:
        self._merged("WHEN NOT MATCHED THEN INSERT *")

    def _merge_nothing(self) -> None:
        key = quoted(self.schema["fields"][0]["name"])
        self._merged(f"WHEN NOT MATCHED BY SOURCE AND t.{key} < -1000000 THEN DELETE")

    def _replace_where(self) -> None:
        text = self._text_partitions()
        if text and self.random.random() < 0.5:
            where = f"{quoted(text[0])} = '{self.random.choice(PARTITION_VALUES[:5])}'"
        else:
            key, first = quoted(self.schema["fields"][0]["name"]), self.random.randrange(30)
            where = f"{key} >= {first} AND {key} < {first + 10}"
        self._write(self._rows(0, 50).where(where), mode="overwrite", replaceWhere=where)

    def _overwrite_partitions(self) -> None:
        mode = {"partitionOverwriteMode": "dynamic"} if self.partitions else {}
        self._write(self._some_rows(), mode="overwrite", **mode)

    # Spark's answers.

    def _note(self, operation: str) -> None:
        first = len(self.story)
        super()._note(operation)
        for version in range(first, len(self.story)):
            commit = self.path / "_delta_log" / f"{version:020d}.json"
            moment = EPOCH + STEP * version
            os.utime(commit, (moment, moment))
            actions = [json.loads(line) for line in commit.read_text().splitlines()]
            changed = [action["metaData"] for action in actions if "metaData" in action]
            self.metadata[version] = changed[0] if changed else self.metadata[version - 1]
        for version in range(first, len(self.story)):
            self.answers[version] = self._ask(version)

    def _ask(self, version: int) -> Answer:
        rows = self.spark.read.format("delta").option("versionAsOf", version).load(str(self.path)).toArrow()
        try:
            feed = spark_feed(self.spark, self.path, version, version)
        except REFUSALS as error:
            return Answer(rows, None, condition(error))
        return Answer.of(rows, feed.get(version))
