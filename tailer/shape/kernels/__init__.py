"""The functions of expressions on arrays of Arrow, with Spark's answers."""

from typing import Final

__all__: Final[list[str]] = []
