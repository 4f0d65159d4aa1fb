"""The port of a table format: all that the rest of the program knows of one.

A format is an object of this port in a module of its own, which imports nothing that is not needed to recognise a
table: the rest of the format is imported when a table is opened.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from tailer.events import ChangeBatch
from tailer.formats.inspection import TableInspector
from tailer.plan import ChangeTask
from tailer.read.data_files import Files
from tailer.stores.port import ObjectStore
from tailer.stores.stores import Stores
from tailer.table_log import TableLog

__all__ = ["RowReader", "TableFormat", "TableNames"]


class RowReader(Protocol):
    """A reader of rows. Synchronous; runs on threads, in other processes and on Spark's executors."""

    def opens_each_version(self, task: ChangeTask) -> bool:
        """Return whether reading a task has a fixed cost, however small its version is.

        If so, reading the next version begins early, and small versions are not read together.
        """
        ...

    def execute(
        self,
        task: ChangeTask,
        after_row: int,
        through_row: int,
        first_byte: int,
        end_byte: int,
        *,
        files: Files,
        use_threads: bool,
    ) -> Iterator[ChangeBatch]:
        """Yield change rows of a task, in ascending order of positions: see `tailer.read.execute.execute`."""
        ...

    def row_groups(self, task: ChangeTask, files: Files) -> list[int]:
        """Return the number of rows of each part of a task's file that is read at once. Raises as `execute`."""
        ...

    def needed_files(
        self, task: ChangeTask, after_row: int, through_row: int, first_byte: int, end_byte: int
    ) -> Sequence[tuple[str, int]]:
        """Return what `execute` opens by `files` in turn, each with the `needed_bytes` of `Files.open`."""
        ...

    def file_of(self, task: ChangeTask) -> Hashable:
        """Return what counts as one file of the table where files are counted."""
        ...


class TableNames(Protocol):
    """The catalogs that know tables of a format by name: `SCHEME://...`.

    The last part of a pattern of names has a `*`.
    """

    scheme: str
    """The beginning of a name, before `://`."""

    table_format: str
    """The name of the format."""

    is_log: bool
    """True if a catalog decides which version is the newest; False if it knows no more than where a table is."""

    missing: tuple[str, str]
    """The reason and the next step, where a catalog has no table of a name."""

    def parse(self, text: str, where: str) -> str:
        """Return the name, or the pattern of names, that `text` is; no I/O. Raises `ConfigError` naming `where`."""
        ...

    def check_client(self, name: str) -> None:
        """Raise `ConfigError` where the client of the catalog is not installed. Imports no library."""
        ...

    async def find(self, name: str, stores: Stores) -> str | None:
        """Return the location of a table; None: the catalog has no such table.

        Raises `NotATable` for a table of another kind, `StorageError` where the catalog refuses or does not answer, and
        `ConfigError` as `check_client`, and where there is no such catalog.
        """
        ...

    async def tables(self, folder: str, pattern: str, stores: Stores) -> list[str]:
        """Return the names below `folder` of all tables that may fit `pattern`, the last part of a name.

        Raises `ObjectNotFound` where there is no such namespace, and otherwise as `find`.
        """
        ...

    def catalog(self, name: str, stores: Stores) -> Any:
        """Return what `TableFormat.open` needs of the catalog of a table; None: nothing. No I/O."""
        return None


class TableFormat(Protocol):
    """A table format."""

    name: str
    """As `table_format` names it. It is part of tasks that travel between processes."""

    title: str
    """A table of the format in sentences, with an article: `a Delta table`."""

    log_folder: str
    """The folder of a table that contains its log: `_delta_log`."""

    has_catalogs: bool
    """True if a catalog may manage the commits of a table."""

    has_branches: bool
    """True if a table may have branches and tags."""

    names: TableNames | None = None
    """The catalogs that know tables by name; None: there is no such catalog."""

    thread_libraries: frozenset[str]
    """The libraries whose threads may abort the process, or hold it up, when the interpreter goes away."""

    def may_be_at(self, location: str) -> bool:
        """Return whether a folder in a store may hold a table of the format, as far as its name tells; no I/O."""
        ...

    async def is_in(self, store: ObjectStore, folder: str) -> bool:
        """Return whether the folder of a store holds a table of the format; one request. Raises `StorageError`."""
        ...

    def versions(self, names: Iterable[str]) -> Iterable[int]:
        """Return the versions of the commits among the `names` of files in a log; a version may occur twice."""
        ...

    def root(self, location: str, branch: str | None) -> str:
        """Return the location of a branch of the table at `location`; None: the main one.

        Raises `ConfigError` naming `branch` for text that is not the name of a branch.
        """
        return location

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
        """Open the log at the `root` of a table; no I/O.

        `open_store`: opens another root. `allowed_roots`: where files of the table may be, besides its location.
        `catalog`: the one that manages the commits, if the format has any, or what `TableNames.catalog` returned.
        `statistics`: whether tasks should have what the log says of the values in files (`ChangeTask.stats`), if it
        says anything. `compare`: whether to plan versions by their data files, though change files are recorded.
        """
        ...

    def inspect(
        self,
        store: ObjectStore,
        open_store: Callable[[str], ObjectStore],
        allowed_roots: tuple[str, ...] = (),
        branch: str | None = None,
        catalog: Any = None,
    ) -> TableInspector:
        """Open what looks at the log at the `root` of a table for people; no I/O. See `open`."""
        ...

    def row_reader(self) -> RowReader:
        """Return what reads the rows of tasks that name the format (`ChangeTask.reader`). Imports it."""
        from tailer.read import execute  # noqa: PLC0415 - not to recognise a table

        return execute

    def check_reader(self) -> None:
        """Raise `ConfigError` naming `table` where a library that reads rows is not installed. Imports no library."""
        return
