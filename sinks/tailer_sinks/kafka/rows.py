"""Messages one by one for kafka-python: Python bytes from columns of bytes."""

from collections.abc import Iterable, Sequence

from tailer_sinks.encoding.messages import Messages

__all__ = ["Headers", "rows"]

Headers = list[tuple[str, str | bytes | None]]


def rows(messages: Messages) -> Iterable[tuple[bytes | None, bytes | None, Headers | None]]:
    """Yield the value, the key and the headers of each message; a null header is left out.

    Arrow's own conversion of a column takes half the time of cutting its buffer by its offsets in Python.
    """
    keys: Sequence[bytes | None] = [None] * len(messages) if messages.keys is None else messages.keys.to_pylist()
    return zip(messages.values.to_pylist(), keys, _headers(messages), strict=True)


def _headers(messages: Messages) -> Sequence[Headers | None]:
    if not messages.headers:
        return [None] * len(messages)
    names = [name for name, _ in messages.headers]
    columns = zip(*(column.to_pylist() for _, column in messages.headers), strict=True)
    return [[(name, value) for name, value in zip(names, row, strict=True) if value is not None] for row in columns]
