"""What change rows become for a destination of messages, whatever the envelope and the client: columns of bytes."""

from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from tailer.events import ChangeBatch

__all__ = ["BYTES", "Encoder", "Messages"]

BYTES: Final = pa.large_binary()


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages in their order, all about rows of one task; the arrays are of one length.

    `keys`, `values`: `large_binary`; None for `keys` where no message has one; a null value is a tombstone.
    `row_index`: int64, the physical row that a message is about; ascending, and with gaps and repetitions.
    `headers`: by name, `large_binary`; null where a message has no such header.
    """

    keys: pa.Array | None
    values: pa.Array
    row_index: pa.Array
    headers: tuple[tuple[str, pa.Array], ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def filter(self, mask: pa.Array) -> "Messages":
        """The messages for which `mask` is true."""
        return Messages(
            None if self.keys is None else self.keys.filter(mask),
            self.values.filter(mask),
            self.row_index.filter(mask),
            tuple((name, column.filter(mask)) for name, column in self.headers),
        )

    def slice(self, offset: int, length: int) -> "Messages":
        """`length` messages from the one at `offset` on; shares memory with these."""
        return Messages(
            None if self.keys is None else self.keys.slice(offset, length),
            self.values.slice(offset, length),
            self.row_index.slice(offset, length),
            tuple((name, column.slice(offset, length)) for name, column in self.headers),
        )


class Encoder(Protocol):
    """Makes messages of the rows of one schema; may hold back rows until those behind them tell what they are."""

    @property
    def pending(self) -> ChangeBatch | None:
        """The rows that are held back: progress must not reach the first of them."""
        ...

    def encode(self, batch: ChangeBatch, now_ms: int) -> Messages:
        """The messages of `batch`, those of rows held back of the same task first. Call `flush` between tasks.

        `now_ms`: when the messages are made. Raises `SinkRejected`, and has changed nothing then.
        """
        ...

    def flush(self, now_ms: int) -> Messages | None:
        """The messages of the rows that are held back: at the end of a task. None if there are none."""
        ...
