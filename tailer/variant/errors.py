"""The error about a value that contradicts the specification."""

__all__ = ["InvalidVariant"]


class InvalidVariant(ValueError):
    """A value, its metadata or the schema of its column is not valid."""
