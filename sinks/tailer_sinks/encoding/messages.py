"""Messages of change rows, for any envelope and client: columns of bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from tailer.events import ChangeBatch

__all__ = ["BYTES", "Messages", "Sent", "TopicEncoder"]

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


class TopicEncoder(Protocol):
    """An encoder of rows of one schema to messages with their topics, in no order between topics.

    May hold back rows that depend on later ones. The encoder of one topic is a `PairingEncoder`
    (`tailer_sinks.encoding.debezium.images`).
    """

    @property
    def sample(self) -> object:
        """Return one of the encoders that make the messages of a topic; None if there is none yet."""
        ...

    @property
    def pending(self) -> ChangeBatch | None:
        """The rows that are held back: progress must stay before the first of them."""
        ...

    def encode(self, batch: ChangeBatch, now_ms: int) -> Sent:
        """Encode `batch`, after the held back rows of the same task. Call `flush` between tasks.

        `now_ms`: when the messages are made. Raises `SinkRejected`; the encoder is then unchanged.
        """
        ...

    def flush(self, now_ms: int) -> Sent:
        """Encode the rows that are held back, at the end of a task."""
        ...
