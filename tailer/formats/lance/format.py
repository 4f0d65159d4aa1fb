"""Lance as a `TableFormat`."""

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any, Final

from typing_extensions import override

from tailer.errors import ConfigError, how_to_install
from tailer.formats.inspection import TableInspector
from tailer.formats.lance.refs import folder_of, parse_branch
from tailer.formats.port import RowReader, TableFormat
from tailer.stores.port import ObjectStore
from tailer.table_log import TableLog

__all__ = ["LANCE"]

_MANIFESTS: Final = ".manifest"
_SUFFIX: Final = ".lance"  # of datasets in stores, by which they are known before they are looked at


class _Lance(TableFormat):
    name = "lance"
    title = "a Lance dataset"
    log_folder = "_versions"
    has_catalogs = False
    has_branches = True
    thread_libraries = frozenset({"lance"})

    @override
    def may_be_at(self, location: str) -> bool:
        return location.endswith(_SUFFIX)

    @override
    async def is_in(self, store: ObjectStore, folder: str) -> bool:
        return await store.holds(
            f"{folder}/{self.log_folder}".removeprefix("/"), lambda name: name.endswith(_MANIFESTS)
        )

    @override
    def versions(self, names: Iterable[str]) -> Iterable[int]:
        """A manifest is named by its version, or counts down from the largest number."""
        from tailer.formats.lance.manifest import LARGEST  # noqa: PLC0415 - not to recognise a dataset

        paths = (path for path in map(PurePosixPath, names) if path.suffix == _MANIFESTS)
        numbers = [int(path.stem) for path in paths if path.stem.isdecimal()]
        return [min(number, LARGEST - number) for number in numbers]

    @override
    def root(self, location: str, branch: str | None) -> str:
        name = parse_branch(branch, "branch")
        return location if name is None else f"{location}/{folder_of(name)}"

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
        from tailer.formats.lance.table import LanceTableLog  # noqa: PLC0415 - not to recognise a table

        return LanceTableLog(store, open_store, allowed_roots, parse_branch(branch, "branch"))

    @override
    def inspect(
        self,
        store: ObjectStore,
        open_store: Callable[[str], ObjectStore],
        allowed_roots: tuple[str, ...] = (),
        branch: str | None = None,
        catalog: Any = None,
    ) -> TableInspector:
        from tailer.formats.lance.inspector import LanceInspector  # noqa: PLC0415 - not to follow a table

        return LanceInspector(store, open_store, allowed_roots, parse_branch(branch, "branch"))

    @override
    def row_reader(self) -> RowReader:
        from tailer.formats.lance.rows.fragments import FRAGMENTS  # noqa: PLC0415 - not to recognise a table

        return FRAGMENTS

    @override
    def check_reader(self) -> None:
        if find_spec("lance") is None:
            raise ConfigError("table", "is a Lance dataset, and pylance is not installed", how_to_install("lance"))


LANCE: Final[TableFormat] = _Lance()
