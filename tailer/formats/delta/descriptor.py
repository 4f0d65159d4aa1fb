"""Descriptors of deletion vectors, made independent of the table (PROTOCOL.md, "Deletion Vector Descriptor Schema")."""

import uuid
from collections.abc import Callable
from typing import Final

from tailer.files.deletion_vector import z85_decode
from tailer.formats.delta.log.actions import DeletionVector
from tailer.plan import DeletionVectorRef

__all__ = ["STORAGE_TYPES", "resolve"]

STORAGE_TYPES: Final = frozenset("uip")
_UUID_CHARACTERS: Final = 20


def resolve(vector: DeletionVector, root: str, absolute: Callable[[str], str]) -> DeletionVectorRef:
    """Make a descriptor independent of its table. `absolute` resolves a path of the log, as for data files.

    Its storage type is one of `STORAGE_TYPES`. Raises `ValueError` for a descriptor that the protocol does not define.
    """
    size, count = vector.size_in_bytes, vector.cardinality
    match vector.storage_type:
        case "i":
            return DeletionVectorRef(None, vector.path_or_inline_dv, None, size, count)
        case "p":
            return DeletionVectorRef(absolute(vector.path_or_inline_dv), None, vector.offset, size, count)
        case _:
            text = vector.path_or_inline_dv
            prefix, encoded = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:]
            name = f"deletion_vector_{uuid.UUID(bytes=z85_decode(encoded, 16))}.bin"
            if "\0" in prefix or ".." in prefix.split("/"):
                raise ValueError(f"{prefix!r} is not a folder of the table")
            return DeletionVectorRef("/".join(filter(None, (root, prefix, name))), None, vector.offset, size, count)
