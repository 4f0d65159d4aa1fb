"""Find the tables of a template: folders that fit its pattern and hold a table of any format, or names in a catalog.

One listing with a delimiter for each folder that the pattern goes through, and one request for each folder at its end,
unless that is a table which is followed already. A catalog lists the tables of a database. Logs are not read.
"""

import logging
from collections.abc import Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import anyio

from tailer.config.pipelines import Settings, TablePattern
from tailer.errors import ConfigError, ObjectNotFound, TailerError
from tailer.formats.registry import find_format, names_of
from tailer.stores.port import ObjectStore
from tailer.stores.stores import Stores

__all__ = ["FoundTables", "Names", "find_tables", "with_found_tables"]

Names = tuple[str, ...]  # of a table, below the folder of the pattern

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 16
_DEADLINE_S: Final = 120.0


@dataclass(slots=True)
class FoundTables:
    """The tables that fit a pattern. `faults`: why there may be more; a table that is not here may still exist."""

    tables: set[Names] = field(default_factory=set)
    faults: list[TailerError] = field(default_factory=list)

    def over(self, followed: Set[Names]) -> set[Names]:
        """Return the tables to follow where `followed` are followed: what could not be listed is kept."""
        return self.tables | followed if self.faults else self.tables


async def find_tables(
    pattern: TablePattern,
    stores: Stores,
    followed: Set[Names] = frozenset(),
    table_format: str | None = None,
) -> FoundTables:
    """Look for the tables of a pattern. `followed`: tables whose log need not be looked for again.

    `table_format`: of the tables to look for; None: all that can be told apart.
    """
    search = _Search(pattern, followed, table_format)
    with anyio.move_on_after(_DEADLINE_S) as scope:
        if (names := names_of(pattern.folder)) is not None:
            try:
                tables = await names.tables(pattern.folder, pattern.names[-1], stores)
            except TailerError as error:
                return FoundTables(faults=[error])
            return FoundTables({(name,) for name in tables if pattern.fits(0, name)})
        try:
            store = stores.open(pattern.folder or "/")
        except ConfigError as error:
            return FoundTables(faults=[error])
        await search.descend(store, ())
    if scope.cancelled_caught:
        reason = f"listing its folders took more than {_DEADLINE_S:.0f} s"
        search.found.faults.append(ConfigError(pattern.folder, reason, "Give a pattern that fits fewer folders."))
    return search.found


async def with_found_tables(settings: Settings) -> Settings:
    """Return the settings with a pipeline for each table of each template. Raises the first fault of a listing."""
    pipelines = list(settings.pipelines)
    for template in settings.templates:
        listing = await find_tables(
            template.pattern, settings.stores, table_format=template.pipeline.source.table_format
        )
        if listing.faults:
            raise listing.faults[0]
        pipelines += [template.expand(names) for names in sorted(listing.tables)]
    return replace(settings, pipelines=tuple(pipelines))


class _Search:
    def __init__(self, pattern: TablePattern, followed: Set[Names], table_format: str | None) -> None:
        self.found: Final = FoundTables()
        self._format = table_format
        self._pattern = pattern
        self._followed = followed
        self._requests = anyio.Semaphore(_AT_ONCE)

    async def descend(self, store: ObjectStore, above: Names, *, is_listed: bool = False) -> None:
        """Look at the folders below `above`, or at the table there. `is_listed`: whether it is known to exist."""
        depth = len(above)
        if depth == len(self._pattern.names):
            await self._look(store, above, is_listed)
            return
        if self._pattern.is_literal(depth):
            await self.descend(store, (*above, self._pattern.names[depth]))
            return
        async with anyio.create_task_group() as group:
            for name in await self._list(store, above):
                if self._pattern.fits(depth, name):
                    group.start_soon(partial(self.descend, store, (*above, name), is_listed=True))

    async def _list(self, store: ObjectStore, above: Names) -> list[str]:
        try:
            async with self._requests:
                return await store.list_folders("/".join(above))
        except ObjectNotFound as error:
            # Below the pattern's folder, not every folder has all that the pattern names. If that folder itself is
            # missing, its disk may not be mounted.
            if not above:
                self.found.faults.append(error)
        except TailerError as error:
            self.found.faults.append(error)
        return []

    async def _look(self, store: ObjectStore, names: Names, is_listed: bool) -> None:
        if is_listed and names in self._followed:
            self.found.tables.add(names)
            return
        try:
            async with self._requests:
                folder = "/".join(names)
                if await find_format(store, folder, self._format) is not None:
                    self.found.tables.add(names)
        except TailerError as error:
            self.found.faults.append(error)
