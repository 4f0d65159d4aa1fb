"""Amounts as people read them."""

from rich.filesize import decimal

__all__ = ["count", "duration", "size"]

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60))


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `1,200 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a length of time in its largest unit that is not below 2: `7 d`, `36 h`, `90 s`, `0.4 s`."""
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    if seconds >= 10:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{max(seconds * 1000, 1):.0f} ms"


def size(size_bytes: int) -> str:
    """Return bytes in the largest unit that fits: `12.3 MB`."""
    return decimal(size_bytes)
