"""Amounts as people read them."""

from rich.filesize import decimal

from tailer.errors import duration

__all__ = ["count", "duration", "size"]


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `1,200 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(size_bytes: int) -> str:
    """Return bytes in the largest unit that fits: `12.3 MB`."""
    return decimal(size_bytes)
