"""Verification of a history as of versions of its source: at most `_MOST` of those that the source still has."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

from tailer.engine.port import Engine
from tailer.errors import FileVacuumed, VersionGone
from tailer.pipeline.policy import Policy
from tailer.pipeline.verification.comparison import BeginStep, Verification, verify
from tailer.sink import MirrorRows
from tailer.start import Start, StartKind
from tailer.table_log import TableLog

__all__ = ["GoneVersions", "OpenAt", "verify_all"]

_MOST: Final = 20

OpenAt = Callable[[int | None], AbstractAsyncContextManager[MirrorRows]]


@dataclass(frozen=True, slots=True)
class GoneVersions:
    """Versions that the history has, from `first` to `version`, and whose rows the source has no longer."""

    first: int
    version: int


async def verify_all(
    open_mirror: OpenAt, table: TableLog, engine: Engine, policy: Policy, limit: int, begin: BeginStep
) -> AsyncGenerator[Verification | GoneVersions, None]:
    """Yield the verification of each version of a sample, oldest first: all versions if there are at most `_MOST`.

    `open_mirror` opens a mirror as of a version. Raises as `verify` and `open_mirror` do, and the error of the last
    version if the source has none of them any more.
    """
    async with open_mirror(None) as mirror:
        newest, known_from = mirror.version, mirror.known_from
    # A change can be read if the version before it is known.
    readable = (await table.resolve(Start(StartKind.EARLIEST))).version
    oldest, compared = min(max(known_from, readable - 1), newest), 0
    for version in _sample(oldest, newest):
        result = None
        try:
            async with open_mirror(version) as mirror:
                result = await verify(mirror, table, engine, policy, limit, begin=begin)
            compared += 1
        except (VersionGone, FileVacuumed):
            if version == newest and not compared:
                raise
        gone = known_from if version == oldest else version, version if result is None else version - 1
        if gone[0] <= gone[1]:
            yield GoneVersions(*gone)
        if result is not None:
            yield result


def _sample(first: int, last: int) -> list[int]:
    """Return the versions from `first` to `last`; if they are more than `_MOST`, so many, evenly spread."""
    steps = min(_MOST, last - first + 1) - 1
    return [first + (last - first) * step // steps for step in range(steps + 1)] if steps else [last]
