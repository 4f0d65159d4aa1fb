"""Lance as a `TableFormat`, and the names of manifests: from a listing of `_versions` to the versions of a dataset.

V1 names a manifest by its version. V2 subtracts the version from the largest unsigned 64-bit number and pads it to 20
digits, so that the newest version is listed first. A dataset uses one scheme: with both, a version could be missed.
"""

import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any, Final

from typing_extensions import override

from tailer.errors import ConfigError, LogCorrupt, how_to_install
from tailer.formats.inspection import TableInspector
from tailer.formats.lance.refs import folder_of, parse_branch
from tailer.formats.port import RowReader, TableFormat
from tailer.stores.port import ObjectStore
from tailer.table_log import TableLog

__all__ = ["LANCE", "LARGEST", "manifests"]

LARGEST: Final = 2**64 - 1
_DETACHED: Final = 2**63  # versions from here on belong to no history
_MANIFEST: Final = re.compile(r"([0-9]+)\.manifest")
_V2_DIGITS: Final = 20


def manifests(table: str, names: Iterable[str]) -> dict[int, str]:
    """Map each version to the name of its manifest, in ascending order.

    `names` are those in the `_versions` folder of `table`. Names that belong to no version are ignored: temporary,
    staged and detached manifests, and the hint. Raises `LogCorrupt` for a mixture of both schemes, and for a number
    that no writer gives to a version.
    """
    by_version: dict[int, str] = {}
    first: dict[bool, str] = {}
    for name in sorted(names):
        if (match := _MANIFEST.fullmatch(name)) is None:
            continue
        is_v2 = len(match[1]) == _V2_DIGITS
        version = LARGEST - int(match[1]) if is_v2 else int(match[1])
        if not 0 < version < _DETACHED or (not is_v2 and name.startswith("0")):
            raise LogCorrupt(table, f"_versions/{name}", "not the number of a version")
        first.setdefault(is_v2, name)
        by_version[version] = name
    if len(first) == 2:
        raise LogCorrupt(table, f"_versions/{first[False]}", f"named by version, but {first[True]} is not")
    return dict(sorted(by_version.items()))


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
