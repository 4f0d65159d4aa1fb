"""Commits as Flink makes them, through Java's API: deletes by keys with new rows, and rows that the commit deletes."""

from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.iceberg.spark.table import SparkTable

__all__ = ["Deltas"]

_KEYS = ("int", "long", "string", "date", "timestamp", "timestamptz", "boolean", "binary", "uuid")


class Deltas:
    """Row deltas of one table. Keys and rows are those of rows that Java reads."""

    def __init__(self, table: SparkTable, scratch: Path) -> None:
        self._table = table
        self._chance = table.chance
        self._scratch = scratch
        self._jvm: Any = table.spark._jvm

    def upsert(self) -> str:
        """Delete by keys, and add rows with these keys: some as they were."""
        return self._write(adds=True)

    def delete(self) -> str:
        """Delete by keys."""
        return self._write(adds=False)

    def row_and_mark(self) -> None:
        """Add a file of rows, and delete its first row in the same commit."""
        loaded = self._table.load()
        record = self._chance.choice(self._records(loaded))
        delta, key = loaded.newRowDelta(), self._key(loaded, record)
        data = self._data(loaded, [record, record], key)
        if loaded.operations().current().formatVersion() < 3:
            writer = self._writers(loaded).newPositionDeleteWriter(self._file(loaded), loaded.spec(), key)
            mark = self._jvm.org.apache.iceberg.deletes.PositionDelete.create()
            writer.write(mark.set(data.location(), 0))
            writer.close()
            delta.addDeletes(writer.toDeleteFile())
        delta.addRows(data).commit()

    def _write(self, adds: bool) -> str:
        loaded = self._table.load()
        if loaded.operations().current().formatVersion() < 2:
            raise ValueError("the first format has no deletes")
        fields = [field for field in loaded.schema().columns() if field.type().toString() in _KEYS]
        chosen = self._chance.sample(fields, min(len(fields), self._chance.choice((1, 1, 2))))
        if self._chance.random() < 0.5:
            chosen = [field for field in fields if field.name() == "id"]
        records = self._records(loaded)
        narrow = self._records(loaded, [field.name() for field in chosen])
        places = self._chance.sample(range(len(records)), min(len(records), self._chance.randint(1, 3)))
        hit = [records[place] for place in places]
        is_whole = self._chance.random() < 0.4
        delta = loaded.newRowDelta()
        groups: dict[str, tuple[Any, list[Any]]] = {}
        for place in places:
            key = self._key(loaded, records[place])
            groups.setdefault(key.toString(), (key, []))[1].append((records if is_whole else narrow)[place])
        for key, group in groups.values():
            delta.addDeletes(self._deletes(loaded, [field.fieldId() for field in chosen], group, key, is_whole))
        if adds:
            names = [field.name() for field in loaded.schema().columns() if field.type().toString() == "string"]
            for record in hit:
                again = record.copy()
                if names and self._chance.random() < 0.6:
                    again.setField(self._chance.choice(names), f"u{self._chance.randrange(3)}")
                delta.addRows(self._data(loaded, [again], self._key(loaded, again)))
        delta.commit()
        return ", ".join(field.name() for field in chosen)

    def _records(self, loaded: Any, names: list[str] | None = None) -> list[Any]:
        """Read all rows. `names`: some of the columns; values stay in Java, where a long is not an int."""
        scan = self._jvm.org.apache.iceberg.data.IcebergGenerics.read(loaded)
        if names is not None:
            chosen = self._table.spark.sparkContext._gateway.new_array(self._jvm.String, len(names))  # type: ignore[union-attr]
            for place, name in enumerate(names):
                chosen[place] = name
            scan = scan.select(chosen)
        found, rows = [], scan.build()
        iterator = rows.iterator()
        while iterator.hasNext():
            found.append(iterator.next().copy())
        rows.close()
        return found

    def _key(self, loaded: Any, record: Any) -> Any:
        """Return the partition of a row."""
        iceberg = self._jvm.org.apache.iceberg
        key = iceberg.PartitionKey(loaded.spec(), loaded.schema())
        key.partition(iceberg.data.InternalRecordWrapper(loaded.schema().asStruct()).wrap(record))
        return key

    def _data(self, loaded: Any, records: list[Any], key: Any) -> Any:
        writer = self._writers(loaded).newDataWriter(self._file(loaded), loaded.spec(), key)
        for record in records:
            writer.write(record)
        writer.close()
        return writer.toDataFile()

    def _deletes(self, loaded: Any, numbers: list[int], records: list[Any], key: Any, is_whole: bool) -> Any:
        """Write a file of keys. `is_whole`: with the other columns, too."""
        ids = self._table.spark.sparkContext._gateway.new_array(self._jvm.int, len(numbers))  # type: ignore[union-attr]
        for place, number in enumerate(numbers):
            ids[place] = number
        schema = loaded.schema()
        if not is_whole:
            chosen = self._jvm.java.util.HashSet(numbers)
            schema = self._jvm.org.apache.iceberg.types.TypeUtil.select(schema, chosen)
        factory = self._builder(loaded).equalityFieldIds(ids).equalityDeleteRowSchema(schema).build()
        writer = factory.newEqualityDeleteWriter(self._file(loaded), loaded.spec(), key)
        for record in records:
            writer.write(record)
        writer.close()
        return writer.toDeleteFile()

    def _builder(self, loaded: Any) -> Any:
        formats = self._jvm.org.apache.iceberg.FileFormat.PARQUET
        builder = getattr(self._jvm.org.apache.iceberg.data, "GenericFileWriterFactory$Builder")(loaded)
        return builder.dataFileFormat(formats).deleteFileFormat(formats).dataSchema(loaded.schema())

    def _writers(self, loaded: Any) -> Any:
        return self._builder(loaded).build()

    def _file(self, loaded: Any) -> Any:
        output = loaded.io().newOutputFile(f"{loaded.location()}/data/{uuid4()}.parquet")
        return self._jvm.org.apache.iceberg.encryption.EncryptedFiles.plainAsEncryptedOutput(output)
