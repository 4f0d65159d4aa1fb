"""What stopped a pipeline's session at a version, and whether the next session may get past it."""

from dataclasses import dataclass

from tailer.errors import ChangeError, LogError, TableReplaced

__all__ = ["Obstacle"]


@dataclass(slots=True)
class Obstacle:
    """What stopped a session at `version` of the table `table_id`.

    `lost`: whether to go on behind it. `met`: whether that was tried.
    """

    error: LogError | ChangeError
    version: int
    table_id: str
    lost: bool
    met: bool = False

    def stands_in(self, table_id: str) -> bool:
        """Whether it still is in the way when the table is `table_id`."""
        return isinstance(self.error, TableReplaced) or self.table_id == table_id
