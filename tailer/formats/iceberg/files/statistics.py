"""Statistics of data files, as a manifest has them, in the form in which tasks carry them (`ChangeTask.stats`).

Bounds are those of whole numbers, dates and texts, in the type that the file has. Bounds of a text that was cut are
still bounds. Those of timestamps are left out: writers have cut their last digits. Other types are left out, too.

Bounds of partition values in a manifest list say which manifests may have files of a partition. Those that are not
compared here, or are missing, leave out no manifest.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from typing import Any, Final

import pyarrow as pa

from tailer.formats.iceberg.files.manifests import FileEntry, Manifest, Place, ValueRange
from tailer.schema.columns import physical_name

__all__ = ["may_hold", "statistics"]


def may_hold(manifest: Manifest, places: Iterable[Place]) -> bool:
    """Return whether a manifest may have a file in one of some partitions."""
    return any(
        spec_id == manifest.spec_id
        and (
            len(partition) != len(manifest.ranges)
            or all(_may_have(field, value) for field, (_, value) in zip(manifest.ranges, partition, strict=True))
        )
        for spec_id, partition in places
    )


def _may_have(field: ValueRange, value: Any) -> bool:
    if value is None:
        return field.has_null
    if field.lower is None or field.upper is None:
        return True
    if isinstance(value, str):
        return field.lower <= value.encode() <= field.upper
    if isinstance(value, int) and not isinstance(value, bool):
        first, last = (int.from_bytes(bound, "little", signed=True) for bound in (field.lower, field.upper))
        return first <= value <= last
    return True


_EPOCH: Final = date(1970, 1, 1)


def statistics(entry: FileEntry, schema: pa.Schema) -> str:
    numbers = {int(physical_name(field)): field.type for field in schema}
    content = {
        "numRecords": entry.records,
        "minValues": _bounds(entry.lower, numbers),
        "maxValues": _bounds(entry.upper, numbers),
        "nullCount": {str(number): count for number, count in entry.nulls.items() if number in numbers},
    }
    return json.dumps(content)


def _bounds(bounds: Mapping[int, bytes], kinds: Mapping[int, pa.DataType]) -> dict[str, Any]:
    values = {str(number): _value(data, kinds[number]) for number, data in bounds.items() if number in kinds}
    return {number: value for number, value in values.items() if value is not None}


def _value(data: bytes, kind: pa.DataType) -> int | str | None:
    if pa.types.is_string(kind):
        try:
            return data.decode()
        except UnicodeDecodeError:  # cut within a character
            return None
    if not (pa.types.is_integer(kind) or pa.types.is_date(kind)):
        return None
    number = int.from_bytes(data, "little", signed=True)
    if pa.types.is_integer(kind):
        return number
    try:
        return (_EPOCH + timedelta(days=number)).isoformat()
    except OverflowError:
        return None
