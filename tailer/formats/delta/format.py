"""Delta Lake as a `TableFormat`."""

from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import Any, Final

from typing_extensions import override

from tailer.formats.delta.catalog.glue import NAMES
from tailer.formats.inspection import TableInspector
from tailer.formats.port import TableFormat
from tailer.stores.port import ObjectStore
from tailer.table_log import TableLog

__all__ = ["DELTA"]


class _Delta(TableFormat):
    name = "delta"
    title = "a Delta table"
    log_folder = "_delta_log"
    has_catalogs = True
    has_branches = False
    names = NAMES
    thread_libraries = frozenset[str]()

    def may_be_at(self, location: str) -> bool:
        """See `TableFormat.may_be_at`. A Delta table may have any name."""
        return True

    @override
    async def is_in(self, store: ObjectStore, folder: str) -> bool:
        from tailer.formats.delta.folders import has_log  # noqa: PLC0415 - not to recognise a table by its name

        return await has_log(store, folder)

    @override
    def versions(self, names: Iterable[str]) -> Iterable[int]:
        paths = (path for path in map(PurePosixPath, names) if path.suffix == ".json")
        return [int(path.stem) for path in paths if path.stem.isdecimal()]

    @override
    def open(
        self,
        store: ObjectStore,
        open_store: Callable[[str], ObjectStore],
        allowed_roots: tuple[str, ...] = (),
        branch: str | None = None,
        catalog: Any = None,
        statistics: bool = False,
        compare: bool = False,
    ) -> TableLog:
        from tailer.formats.delta.table import DeltaTableLog  # noqa: PLC0415 - not to recognise a table

        return DeltaTableLog(store, catalog, allowed_roots, statistics, compare)

    @override
    def inspect(
        self,
        store: ObjectStore,
        open_store: Callable[[str], ObjectStore],
        allowed_roots: tuple[str, ...] = (),
        branch: str | None = None,
        catalog: Any = None,
    ) -> TableInspector:
        from tailer.formats.delta.inspection import DeltaInspector  # noqa: PLC0415 - not to follow a table

        return DeltaInspector(store, catalog)


DELTA: Final[TableFormat] = _Delta()
