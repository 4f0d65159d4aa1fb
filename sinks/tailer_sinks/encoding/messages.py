"""Messages of change rows, for any envelope and client: columns of bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

__all__ = ["BYTES", "Messages", "Sent"]

BYTES: Final = pa.large_binary()


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages in order, all about rows of one task; the arrays have the same length.

    `keys`, `values`: `large_binary`; None for `keys` if no message has one; a null value is a tombstone. `row_index`:
    int64, the physical row of a message; ascending, with gaps and repetitions. `headers`: by name, `large_binary`; null
    for a message without the header.
    """

    keys: pa.Array | None
    values: pa.Array
    row_index: pa.Array
    headers: tuple[tuple[str, pa.Array], ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def filter(self, mask: pa.Array) -> "Messages":
        """Return the messages for which `mask` is true."""
        return Messages(
            None if self.keys is None else self.keys.filter(mask),
            self.values.filter(mask),
            self.row_index.filter(mask),
            tuple((name, column.filter(mask)) for name, column in self.headers),
        )

    def slice(self, offset: int, length: int) -> "Messages":
        """Return `length` messages from `offset` on, which share memory with these."""
        return Messages(
            None if self.keys is None else self.keys.slice(offset, length),
            self.values.slice(offset, length),
            self.row_index.slice(offset, length),
            tuple((name, column.slice(offset, length)) for name, column in self.headers),
        )


# Topics with messages, and the numbers of the rows of a batch that they are about, if these are not all.
Sent = Sequence[tuple[str, Messages, pa.Array | None]]
