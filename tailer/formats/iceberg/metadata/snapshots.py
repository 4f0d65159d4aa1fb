"""The snapshots that a metadata file lists.

Each metadata file lists all snapshots that are kept, about a kilobyte each, and adds one at the end. So those that an
older file has listed are known by the checksum of their text, and only what follows is parsed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import msgspec

__all__ = ["History", "Snapshot", "noted_number", "read_history"]

_END: Final = b"] \t\r\n"
_BETWEEN: Final = b", \t\r\n"


class Summary(msgspec.Struct, rename="kebab", frozen=True, kw_only=True):
    """Notes of the writer about a snapshot, as far as somebody asks for them. Nothing checks them."""

    operation: Any = None
    engine_name: Any = None
    engine_version: Any = None
    added_files_size: Any = None
    added_records: Any = None
    deleted_records: Any = None
    total_records: Any = None
    added_position_deletes: Any = None
    added_equality_deletes: Any = None
    total_equality_deletes: Any = None


class Snapshot(msgspec.Struct, rename="kebab", frozen=True, kw_only=True):
    """The state of a table at a time. `manifests`: its manifests, where no `manifest_list` has them."""

    snapshot_id: int
    timestamp_ms: int
    parent_snapshot_id: int | None = None
    sequence_number: int = 0
    manifest_list: str | None = None
    manifests: tuple[str, ...] = ()
    summary: Summary = Summary()
    schema_id: int | None = None
    first_row_id: int | None = None
    key_id: str | None = None

    @property
    def operation(self) -> str | None:
        """The writer's name for what it did."""
        name = self.summary.operation
        return name if isinstance(name, str) else None

    @property
    def is_first(self) -> bool:
        """Return whether the table had no rows before: no snapshot, and no row that the snapshot did not add.

        PyIceberg forgets the parent of what follows an expired snapshot.
        """
        notes = self.summary
        added, deleted, total = map(noted_number, (notes.added_records, notes.deleted_records, notes.total_records))
        has_parent = self.parent_snapshot_id is not None and self.parent_snapshot_id >= 0
        return not has_parent and (total is None or total + (deleted or 0) <= (added or 0))


def noted_number(text: Any) -> int | None:
    """Return a number of a summary; None: there is none."""
    return int(text) if (text := str(text)).isdecimal() else None


@dataclass(frozen=True, slots=True)
class History:
    """The snapshots of a metadata file, by id.

    `line`: the same object in histories that only add to one another. `size`, `checksum`: of their text, without the
    end of the list.
    """

    by_id: Mapping[int, Snapshot]
    line: object
    size: int = 0
    checksum: bytes = b""


_DECODER: Final = msgspec.json.Decoder(tuple[Snapshot, ...] | None, strict=False)


def read_history(text: msgspec.Raw, before: History | None) -> History:
    """Parse a list of snapshots. `before`: of an older file. Raises `msgspec.DecodeError`."""
    view = memoryview(text)
    size = len(view)
    while size and view[size - 1] in _END:
        size -= 1
    older = before if before is not None and before.by_id and before.size <= size else None
    start = 0 if older is None else older.size
    checksum = sha256(view[:start])
    is_continued = older is not None and checksum.digest() == older.checksum
    checksum.update(view[start:size])
    if older is None or not is_continued:
        return History(_by_id(view), object(), size, checksum.digest())
    added = _by_id(b"[" + bytes(view[start:]).lstrip(_BETWEEN))
    return History({**older.by_id, **added}, older.line, size, checksum.digest())


def _by_id(text: bytes | memoryview) -> Mapping[int, Snapshot]:
    return {snapshot.snapshot_id: snapshot for snapshot in (_DECODER.decode(text) if text else None) or ()}
