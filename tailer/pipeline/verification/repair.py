"""Repair: a mirror that differs from its source gets the source's rows, and is verified again.

The pipeline may go on meanwhile. If it commits between the moment when the mirror is read and its repair, nothing is
changed, and the mirror is compared again.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from tailer.engine.port import Engine
from tailer.errors import ConfigError
from tailer.pipeline.policy import Policy
from tailer.pipeline.verification.comparison import BeginStep, Verification, verify
from tailer.sink import MirrorRows
from tailer.table_log import TableLog

__all__ = ["repair"]

ATTEMPTS: Final = 3

_log = logging.getLogger(__name__)


async def repair(
    open_mirror: Callable[[], AbstractAsyncContextManager[MirrorRows]],
    table: TableLog,
    engine: Engine,
    policy: Policy,
    limit: int,
    begin: BeginStep = lambda _: None,
) -> AsyncGenerator[Verification, None]:
    """Yield each verification until one finds no difference, comes after a repair, or cannot be repaired.

    If the last one differs and has the source's columns, either the repair of the one before it did not help, or the
    pipeline has committed in each of `ATTEMPTS`. `begin`: see `verify`. Raises as `verify` and `open_mirror` do;
    `ConfigError` for a log.
    """
    for attempt in range(1, ATTEMPTS + 1):
        async with open_mirror() as mirror:
            if not mirror.key:
                reason = "is for a mirror, and this is a log of changes"
                raise ConfigError("--repair", reason, "Deliver to a new table, under another name of the pipeline.")
            verification = await verify(mirror, table, engine, policy, limit, repairs=True, begin=begin)
        yield verification
        if verification.is_equal or not verification.has_same_columns:
            return
        if verification.rewritten is not None:
            async with open_mirror() as mirror:
                yield await verify(mirror, table, engine, policy, limit, begin=begin)
            return
        if attempt < ATTEMPTS:
            _log.warning("nothing was rewritten: the mirror was changed meanwhile; comparing again")
