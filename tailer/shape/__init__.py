"""Expressions of SQL over the columns of a table, with Spark's meaning, evaluated by Arrow.

`condition` is the entrance: text becomes a checked `Condition`. `ranges` says where a condition cannot hold.
"""

from typing import Final

__all__: Final[list[str]] = []
