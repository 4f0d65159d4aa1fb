"""Fields of a file for those of a table: by field id, by physical name, or by the names in files without ids; and types
that can be read as others.
"""

import json
from collections.abc import Callable, Iterable
from typing import Final

import pyarrow as pa

from tailer.errors import DataCorrupt
from tailer.schema.columns import FIELD_ID, FILE_NAMES, physical_name, widens

__all__ = ["Corrupt", "FileFields", "are_raw", "reads_as"]


def reads_as(file_type: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a checked cast from `file_type` to `wanted` preserves every value."""
    if file_type.equals(wanted) or pa.types.is_null(file_type) or pa.types.is_null(wanted):
        return True
    if pa.types.is_dictionary(file_type):
        return reads_as(file_type.value_type, wanted)
    if isinstance(file_type, pa.BaseExtensionType):  # of Arrow, such as JSON or UUID
        return reads_as(file_type.storage_type, wanted)
    return widens(file_type, wanted) or any(source(file_type) and to(wanted) for source, to in _CASTS)


def are_raw(file_type: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a sound file may store values of `wanted` as plain numbers, whose meaning it does not say."""
    is_number = file_type in (pa.int32(), pa.int64())
    if pa.types.is_decimal(wanted):
        return is_number or _is_bytes(file_type)
    return is_number and bool(pa.types.is_temporal(wanted))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    fixed = pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind)
    return bool(fixed or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


# Besides what widens. Delta has no unsigned types: a table converted from Parquet has the next wider one, and
# decimal(20,0) for the widest. Integers and decimals are checked by the cast. Text without its annotation is bytes in
# the file, and is checked to be UTF-8. Bytes that the file annotates as text are bytes.
_CASTS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]], ...]] = (
    (pa.types.is_integer, pa.types.is_integer),
    (pa.types.is_unsigned_integer, pa.types.is_decimal),
    (lambda kind: bool(pa.types.is_unsigned_integer(kind) and kind.bit_width < 64), pa.types.is_float64),
    (pa.types.is_decimal, pa.types.is_decimal),
    (pa.types.is_timestamp, pa.types.is_timestamp),
    (_is_text, _is_text),
    (_is_bytes, _is_text),
    (_is_text, _is_bytes),
    (_is_bytes, _is_bytes),
)


Corrupt = Callable[[str], DataCorrupt]


class FileFields:
    """The fields of one level of a file, by field id and by name. `corrupt`: makes the errors that `find` raises."""

    def __init__(self, fields: Iterable[pa.Field], corrupt: Corrupt) -> None:
        self._corrupt = corrupt
        self._by_id: dict[bytes, list[pa.Field]] = {}
        self._by_name: dict[str, list[pa.Field]] = {}
        self._by_folded_name: dict[str, list[pa.Field]] = {}
        self._found: dict[str, str] = {}
        for field in fields:
            self._by_name.setdefault(field.name, []).append(field)
            self._by_folded_name.setdefault(field.name.lower(), []).append(field)
            if field.metadata and FIELD_ID in field.metadata:
                self._by_id.setdefault(field.metadata[FIELD_ID], []).append(field)

    def find(self, field: pa.Field) -> pa.Field | None:
        """Return the field for `field` of the table: by field id if that has one, else by physical name; None: none.

        In a file without field ids, it has one of its `FILE_NAMES`.

        Spark resolves names without regard to case, so a file whose only match differs in case has the column. No two
        columns of a table are one in a file.
        """
        name, wanted_id = physical_name(field), (field.metadata or {}).get(FIELD_ID)
        if wanted_id is None:
            matches = self._by_name.get(name) or self._by_folded_name.get(name.lower(), [])
        elif self._by_name and not self._by_id and FILE_NAMES in field.metadata:
            names = json.loads(field.metadata[FILE_NAMES])
            matches = [match for file_name in names for match in self._by_name.get(file_name, ())]
        elif self._by_name and not self._by_id:
            raise self._corrupt(f"no field ids, by which the table knows column {field.name}")
        else:
            matches = self._by_id.get(wanted_id, [])
            # Rows have their columns by name.
            matches = self._by_name[matches[0].name] if len(matches) == 1 else matches
        if len(matches) > 1:
            raise self._corrupt(f"several columns may be {field.name}: {', '.join(match.name for match in matches)}")
        if not matches:
            return None
        other = self._found.setdefault(matches[0].name, field.name)
        if other != field.name:
            raise self._corrupt(f"column {matches[0].name} is both {other} and {field.name}")
        return matches[0]
