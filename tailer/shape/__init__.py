"""Expressions of SQL over the columns of a table, with Spark's meaning, evaluated by Arrow.

`condition` says which rows leave, `select` which columns, and what they look like. `ranges` says where a condition
cannot hold.
"""

from typing import Final

__all__: Final[list[str]] = []
