"""The layouts of sinks that several processes write, and the end of all sinks."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import anyio

from tailer.config.pipelines import PipelineSettings
from tailer.errors import TailerError
from tailer.sink import Sink

if TYPE_CHECKING:
    from tailer.shards.resharding import Layout

__all__ = ["close_sinks", "open_layout"]

CLOSE_S: Final = 5.0

_log = logging.getLogger(__name__)


def open_layout(settings: PipelineSettings, sink: Sink) -> "Layout":
    """Make the layout that keeps the number of shards in `sink`, which `distributes`; no I/O. Raises `ConfigError`."""
    from tailer.shards.resharding import Layout  # noqa: PLC0415 - only for sinks that distribute
    from tailer.shards.worker import make_sink  # noqa: PLC0415

    return Layout(settings.name, settings.open_table(), sink, lambda: make_sink(settings))


async def close_sinks(sinks: Sequence[Sink]) -> None:
    """Close every sink, also during a cancellation; give up on sinks that do not answer within `CLOSE_S`."""
    with anyio.move_on_after(CLOSE_S, shield=True):
        for sink in sinks:
            try:
                await sink.aclose()
            except TailerError as error:
                _log.warning("%s", error)
