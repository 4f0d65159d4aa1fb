"""Text of SQL becomes a typed expression. sqlglot is imported here alone, and only when an expression is parsed."""

from typing import Final

__all__: Final[list[str]] = []
