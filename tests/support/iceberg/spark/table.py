"""A table that Spark writes: its random columns, literals and conditions."""

import random
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

__all__ = ["SparkTable"]

_TEXTS = ("'a'", "'b'", "'Ä ∂'", "''", "'long long long long text'")
_VALUES = {
    "boolean": ("true", "false"),
    "int": ("0", "1", "-7", "2147483647"),
    "bigint": ("0", "1", "-7", "9007199254740993"),
    "float": ("0", "1.5", "'NaN'", "-0.0", "'-Infinity'"),
    "double": ("0", "1.5", "'NaN'", "2.222", "1e300"),
    "date": ("'2024-02-29'", "'1969-12-31'", "'0001-01-01'", "'2024-03-01'"),
    "timestamp": ("'2024-02-29T12:00:00.123456'", "'1969-12-31T23:59:59.999999'", "'2024-03-01T00:00:00'"),
    "timestamp_ntz": ("'2024-02-29T12:00:00.123456'", "'1900-01-01T00:00:00.000001'"),
    "string": _TEXTS,
    "binary": ("X''", "X'00FF'", "X'DEADBEEF'"),
}
_UUIDS = ("'8f5f2d0e-0000-4000-8000-000000000001'", "'ffffffff-ffff-4fff-bfff-ffffffffffff'")
_COLUMNS = (
    *((f"c_{kind}", kind) for kind in _VALUES if kind not in ("int", "string")),
    ("c_d9", "decimal(9,2)"),
    ("c_d38", "decimal(38,10)"),
    ("s", "struct<a:int,b:string,deep:struct<x:float,y:date>>"),
    ("arr", "array<struct<k:int,t:string>>"),
    ("plain_arr", "array<int>"),
    ("m", "map<string,struct<f:int,g:double>>"),
    ("m2", "map<int,array<string>>"),
)
_MODES = ("copy-on-write", "merge-on-read")
_PARTITIONS = ("", "", "p", "bucket(3, id)", "truncate(2, p)", "p, bucket(2, id)", "v", "days(c_timestamp)", "c_date")


class SparkTable:
    """A table of Spark's catalog, made in a random form.

    `plain`: its columns stay as they are. `keyed`: each row has an id of its own, and the table can be followed.
    """

    def __init__(self, spark: SparkSession, name: str, seed: int, plain: bool, keyed: bool) -> None:
        self.spark = spark
        self.name = name
        self.plain = plain
        self.keyed = keyed
        self._next_id = 10
        self.chance = random.Random(seed)
        choice = self.chance.choice
        more = self.chance.sample(_COLUMNS, self.chance.randint(0, 5))
        partition = choice(_PARTITIONS)
        for column in ("c_timestamp", "c_date"):
            if column in partition and not any(column == one for one, _ in more):
                more.append((column, column.removeprefix("c_")))
        self.has_key = self.chance.random() < 0.3
        columns = [
            ("id", choice(("int", "bigint")) + (" NOT NULL" if self.has_key or keyed else "")),
            ("p", "string"),
            ("v", "int"),
        ]
        self.version = max(choice((1, 2, 2, 2, 3, 3, 3, 3)), 2 if keyed else 1)
        if self.version == 3 and self.chance.random() < 0.3:
            more.append(("c_variant", "variant"))
        properties = {
            "format-version": self.version,
            "write.delete.mode": choice(_MODES),
            "write.update.mode": choice(_MODES),
            "write.merge.mode": choice(_MODES),
            "write.delete.granularity": choice(("file", "partition")),
            "write.distribution-mode": "none",
            "write.spark.fanout.enabled": "true",
            "write.metadata.compression-codec": choice(("none", "gzip")),
            "commit.manifest.min-count-to-merge": choice((2, 3, 100)),
            "write.parquet.compression-codec": choice(("zstd", "snappy", "gzip")),
        }
        self.create("CREATE TABLE", [*columns, *more], partition, properties)
        if self.has_key:
            self.sql("ALTER TABLE {t} SET IDENTIFIER FIELDS id")

    def create(
        self, verb: str, columns: Sequence[tuple[str, str]], partition: str, properties: dict[str, object]
    ) -> None:
        """Create the table, or replace it."""
        fields = ", ".join(f"{name} {kind}" for name, kind in columns)
        partitioned = f"PARTITIONED BY ({partition})" if partition else ""
        options = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        self.sql(f"{verb} {{t}} ({fields}) USING iceberg {partitioned} TBLPROPERTIES ({options})")

    def sql(self, text: str) -> list[Any]:
        """Run a statement; `{t}` is the table."""
        return self.spark.sql(text.replace("{t}", self.name)).collect()

    def call(self, procedure: str, arguments: str = "") -> list[Any]:
        """Call a procedure with the table."""
        more = f", {arguments}" if arguments else ""
        return self.sql(f"CALL local.system.{procedure}(table => '{self.name}'{more})")

    def load(self) -> Any:
        """Return Java's table."""
        jvm: Any = self.spark._jvm
        return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self.spark._jsparkSession, self.name)

    def fields(self) -> list[StructField]:
        """Return the columns of now."""
        return list(self.spark.table(self.name).schema.fields)

    def row(self) -> str:
        """Return a row for VALUES."""
        return "(" + ", ".join(self.literal(field.dataType, field) for field in self.fields()) + ")"

    def rows(self, least: int, most: int) -> str:
        """Return rows for VALUES."""
        fields = self.fields()
        number = self.chance.randint(least, most)
        return ", ".join(
            "(" + ", ".join(self.literal(field.dataType, field) for field in fields) + ")" for _ in range(number)
        )

    def literal(self, kind: DataType, field: StructField | None = None) -> str:
        """Return a value of a type. `field`: the column that it is for."""
        may_be_null = field is None or field.nullable
        if may_be_null and self.chance.random() < 0.15:
            return f"CAST(NULL AS {kind.simpleString()})"
        if field is not None and field.name == "id":
            return f"CAST({self._id()} AS {kind.simpleString()})"
        if field is not None and field.name.startswith("c_uuid"):
            return self.chance.choice(_UUIDS)
        return f"CAST({self._value(kind)} AS {kind.simpleString()})"

    def _id(self) -> int:
        """Return the id of a new row."""
        if not self.keyed:
            return self.chance.randrange(10)
        self._next_id += 1
        return self._next_id - 1

    @property
    def ids(self) -> range:
        """The ids that rows may have."""
        return range(self._next_id)

    def _value(self, kind: DataType) -> str:
        if isinstance(kind, StructType):
            parts = (f"'{field.name}', {self.literal(field.dataType)}" for field in kind.fields)
            return f"named_struct({', '.join(parts)})"
        if isinstance(kind, ArrayType):
            return f"array({', '.join(self.literal(kind.elementType) for _ in range(self.chance.randrange(3)))})"
        if isinstance(kind, MapType):
            keys = self.chance.sample(["1", "2", "3"], self.chance.randrange(3))
            return f"map({', '.join(f'{key}, {self.literal(kind.valueType)}' for key in keys)})"
        name = kind.simpleString()
        if name.startswith("decimal"):
            return self.chance.choice(("0", "1.25", "-3.5", "99999"))
        if name == "variant":
            text = self.chance.choice(('{"a":1,"b":[1,2.5,"x"]}', "[]", "7", '"text"', '{"a":"z"}'))
            return f"parse_json('{text}')"
        return self.chance.choice(_VALUES[name])

    def condition(self) -> str:
        """Return a condition on the rows."""
        key = self.chance.choice(self.ids)
        others = [f"{field.name} IS NULL" for field in self.fields() if field.name != "id"]
        return self.chance.choice((
            f"id = {key}", f"id IN ({key}, {(key + 3) % len(self.ids)})", f"id % 3 = {key % 3}", f"id > {key}", "true",
            self.chance.choice(others),
        ))  # fmt: skip
