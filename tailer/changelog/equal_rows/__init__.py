"""Equality of rows: the columns in which rows are compared, their comparable values, fingerprints, and an index."""

__all__: list[str] = []
