"""Random changes of a table's columns and partitions."""

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql.types import ArrayType, MapType, StructType

from tests.support.iceberg.spark.table import SparkTable

__all__ = ["Evolution"]

_WIDER = {"int": "bigint", "float": "double", "decimal(9,2)": "decimal(18,2)"}
_ADDED = ("int", "string", "float", "date", "decimal(9,2)", "struct<a:int,b:string>", "array<struct<k:int,t:string>>")
_TRANSFORMS = ("p", "v", "bucket(3, id)", "bucket(2, id)", "truncate(1, p)")


class Evolution:
    """Changes of one table. A column comes back under its name after it was dropped."""

    def __init__(self, table: SparkTable) -> None:
        self._table = table
        self._chance = table.chance

    def all(self) -> Sequence[Callable[[], object]]:
        """Return all kinds of changes."""
        return (
            self._add, self._add, self._add_default, self._drop, self._rename, self._swap, self._widen, self._reorder,
            self._add_nested, self._drop_nested, self._rename_nested, self._swap_nested, self._add_partition,
            self._drop_partition, self._replace_partition, self._add_unknown_to_spark,
        )  # fmt: skip

    def _names(self) -> list[str]:
        return [field.name for field in self._table.fields() if field.name != "id"]

    def _add(self) -> None:
        name = f"n{self._chance.randrange(4)}"
        place = self._chance.choice(("", "FIRST", "AFTER id"))
        self._table.sql(f"ALTER TABLE {{t}} ADD COLUMN {name} {self._chance.choice(_ADDED)} {place}")

    def _add_default(self) -> str:
        """Add a column with a default, which Spark's SQL cannot."""
        jvm: Any = self._table.spark._jvm
        types, literal = jvm.org.apache.iceberg.types.Types, jvm.org.apache.iceberg.expressions.Expressions.lit
        name = f"d{self._chance.randrange(4)}"
        kind, value = self._chance.choice((
            (types.IntegerType.get(), 7), (types.StringType.get(), "dflt"), (types.DoubleType.get(), 2.5),
            (types.BooleanType.get(), True),
        ))  # fmt: skip
        self._table.load().updateSchema().addColumn(name, kind, None, literal(value)).commit()
        return name

    def _add_unknown_to_spark(self) -> str:
        """Add a column of a type that Spark writes, and has no name for."""
        types: Any = self._table.spark._jvm.org.apache.iceberg.types.Types  # type: ignore[union-attr]
        name = f"c_uuid{self._chance.randrange(2)}"
        self._table.load().updateSchema().addColumn(name, types.UUIDType.get()).commit()
        return name

    def _drop(self) -> str:
        name = self._chance.choice(self._names())
        self._table.sql(f"ALTER TABLE {{t}} DROP COLUMN {name}")
        return name

    def _rename(self) -> str:
        name, new = self._chance.choice(self._names()), f"r{self._chance.randrange(4)}"
        self._table.sql(f"ALTER TABLE {{t}} RENAME COLUMN {name} TO {new}")
        return f"{name} {new}"

    def _swap(self) -> str:
        one, other = self._chance.sample(self._names(), 2)
        for old, new in ((one, "tmp"), (other, one), ("tmp", other)):
            self._table.sql(f"ALTER TABLE {{t}} RENAME COLUMN {old} TO {new}")
        return f"{one} {other}"

    def _widen(self) -> str:
        fields = [field for field in self._table.fields() if field.dataType.simpleString() in _WIDER]
        field = self._chance.choice(fields)
        self._table.sql(f"ALTER TABLE {{t}} ALTER COLUMN {field.name} TYPE {_WIDER[field.dataType.simpleString()]}")
        return field.name

    def _reorder(self) -> str:
        name, other = self._chance.sample(self._names(), 2)
        place = self._chance.choice(("FIRST", f"AFTER {other}"))
        self._table.sql(f"ALTER TABLE {{t}} ALTER COLUMN {name} {place}")
        return f"{name} {place}"

    def _structs(self) -> list[tuple[str, StructType]]:
        """Return the path and the type of each struct."""
        found: list[tuple[str, StructType]] = []

        def look(path: str, kind: Any) -> None:
            if isinstance(kind, StructType):
                if path:
                    found.append((path, kind))
                for field in kind.fields:
                    look(f"{path}.{field.name}".strip("."), field.dataType)
            elif isinstance(kind, ArrayType):
                look(f"{path}.element", kind.elementType)
            elif isinstance(kind, MapType):
                look(f"{path}.value", kind.valueType)

        look("", StructType(self._table.fields()))
        return found

    def _add_nested(self) -> str:
        path, _ = self._chance.choice(self._structs())
        kind = self._chance.choice(("int", "string", "struct<q:int>"))
        self._table.sql(f"ALTER TABLE {{t}} ADD COLUMN {path}.z{self._chance.randrange(3)} {kind}")
        return path

    def _drop_nested(self) -> str:
        path, kind = self._chance.choice(self._structs())
        name = self._chance.choice(kind.fields).name
        self._table.sql(f"ALTER TABLE {{t}} DROP COLUMN {path}.{name}")
        return f"{path}.{name}"

    def _rename_nested(self) -> str:
        path, kind = self._chance.choice(self._structs())
        name = self._chance.choice(kind.fields).name
        self._table.sql(f"ALTER TABLE {{t}} RENAME COLUMN {path}.{name} TO y{self._chance.randrange(3)}")
        return f"{path}.{name}"

    def _swap_nested(self) -> str:
        path, kind = self._chance.choice([pair for pair in self._structs() if len(pair[1].fields) > 1])
        one, other = (field.name for field in self._chance.sample(kind.fields, 2))
        for old, new in ((one, "tmp"), (other, one), ("tmp", other)):
            self._table.sql(f"ALTER TABLE {{t}} RENAME COLUMN {path}.{old} TO {new}")
        return f"{path} {one} {other}"

    def _add_partition(self) -> str:
        transform = self._chance.choice(_TRANSFORMS)
        self._table.sql(f"ALTER TABLE {{t}} ADD PARTITION FIELD {transform}")
        return transform

    def _partition(self) -> str:
        table = self._table.load()
        spec, schema = table.spec(), table.schema()
        texts = []
        for field in spec.fields():
            name, transform = schema.findColumnName(field.sourceId()), field.transform().toString()
            kind, _, size = transform.rstrip("]").partition("[")
            texts.append(f"{kind}({size}, {name})" if size else name if kind == "identity" else f"{kind}({name})")
        return self._chance.choice([text for text in texts if not text.startswith("void")])

    def _drop_partition(self) -> str:
        field = self._partition()
        self._table.sql(f"ALTER TABLE {{t}} DROP PARTITION FIELD {field}")
        return field

    def _replace_partition(self) -> str:
        field, new = self._partition(), self._chance.choice(_TRANSFORMS)
        self._table.sql(f"ALTER TABLE {{t}} REPLACE PARTITION FIELD {field} WITH {new}")
        return f"{field} {new}"
