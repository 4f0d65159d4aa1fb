"""Random histories of tables whose first column identifies the rows of every version: mirrors can follow them."""

from typing import Final

from pyspark.sql import DataFrame

from tests.support.histories.schema_evolution import EvolvingHistory
from tests.support.spark.sql_types import quoted

__all__ = ["KeyedHistory"]

_FIRST: Final = 1_000


class KeyedHistory(EvolvingHistory):
    """`EvolvingHistory` whose appended rows have keys that no row had before."""

    _next: int = _FIRST

    @property
    def key(self) -> str:
        """The column that identifies the rows of the newest version."""
        return str(self.schema["fields"][0]["name"])

    def _new_rows(self, count: int) -> DataFrame:
        first, self._next = self._next, self._next + count
        return self._rows(first, first + count)

    def _insert(self) -> None:
        self._append(self._new_rows(self.random.randint(1, 20)))

    def _replace_where(self) -> None:
        """Replace a partition by new rows, or a range of keys."""
        text = self._text_partitions()
        if not text or self.random.random() < 0.5:
            key, first = quoted(self.key), self.random.randrange(30)
            where = f"{key} >= {first} AND {key} < {first + 10}"
            self._write(self._rows(first, first + 10), mode="overwrite", replaceWhere=where)
            return
        where = f"{quoted(text[0])} = 'plain'"
        self._write(self._new_rows(50).where(where), mode="overwrite", replaceWhere=where)

    def _overwrite_partitions(self) -> None:
        mode = {"partitionOverwriteMode": "dynamic"} if self.partitions else {}
        self._write(self._new_rows(self.random.randint(1, 20)), mode="overwrite", **mode)
