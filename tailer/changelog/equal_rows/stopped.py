"""The end of a comparison that nobody waits for any more."""

__all__ = ["Stopped"]


class Stopped(Exception):
    """Raised in a comparison after its index was stopped."""
