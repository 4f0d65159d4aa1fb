"""The orders to backfill that a daemon keeps over its restarts, and the check of a new one.

They are in a file (`ControlSettings.orders_file`):

    {"format": 1, "backfills": {"orders": {"id": "20260301T120005-1f3a5c7e", "version": 7, "where": "region = 'eu'"}}}

The file is replaced as a whole. An order is in it from before its first row until its end. How far a backfill is, only
the sink knows (invariant 2).
"""

import os
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec

from tailer.config.pipelines import PipelineSettings
from tailer.errors import ConfigError
from tailer.pipeline.backfill.delivery import backfill_plan
from tailer.pipeline.backfill.order import BackfillOrder
from tailer.pipeline.status import PipelineStatus

__all__ = ["OrderFile", "check_backfill"]

_FORMAT: Final = 1


class _Orders(msgspec.Struct, frozen=True):
    format: int
    backfills: dict[str, BackfillOrder]


class OrderFile:
    """The file of orders at `path`. Blocking; any thread may use it. Reads the file.

    Raises `ConfigError` if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._orders = self._read()

    def restore(self, status: PipelineStatus) -> None:
        """Let the pipeline go on with its order, and keep its orders from now on."""
        name = status.name
        status.backfills.restore(self._orders.get(name), lambda order: self._keep(name, order))

    def _read(self) -> dict[str, BackfillOrder]:
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_Orders)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            reason = f"the orders to backfill cannot be read: {error}"
            raise ConfigError(str(self._path), reason, "Delete the file, and order backfills again.") from error
        if found.format != _FORMAT:
            reason = f"is in format {found.format}, and this release knows {_FORMAT}"
            raise ConfigError(str(self._path), reason, "Use the release that wrote it, or a newer one.")
        return found.backfills

    def _keep(self, pipeline: str, order: BackfillOrder | None) -> None:
        """Keep the order of a pipeline; None: it has none. Raises `ConfigError` if the file cannot be written."""
        with self._lock:
            orders = {name: each for name, each in self._orders.items() if name != pipeline}
            orders |= {} if order is None else {pipeline: order}
            try:
                _replace(self._path, msgspec.json.encode(_Orders(_FORMAT, orders)) if orders else None)
            except OSError as error:
                reason = f"the orders to backfill cannot be written: {error.strerror or error}"
                remedy = "Make the folder writable, or set orders_file to a path in one that is."
                raise ConfigError(str(self._path), reason, remedy) from error
            self._orders = orders


def _replace(path: Path, data: bytes | None) -> None:
    """Put `data` in place of the file, durably; None: remove it."""
    if data is None:
        path.unlink(missing_ok=True)
        return
    written = path.with_name(f".{path.name}.tmp")
    with written.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    written.replace(path)


async def check_backfill(pipeline: PipelineSettings, status: PipelineStatus, order: BackfillOrder) -> None:
    """Raise the `TailerError` for which the log of the table says that the backfill cannot be done."""
    table, position = (await pipeline.located()).open_table(), status.backlog.position
    delivered = None if position is None else position.version - (not position.closes_version)
    if order.version is not None and delivered is not None and order.version > delivered:
        reason = f"version {order.version} comes after version {delivered}, up to which the pipeline has delivered"
        raise ConfigError("version", reason, "Give an earlier version, or none.")
    version = delivered if order.version is None else order.version
    async with aclosing(table.snapshot_plans(await table.latest() if version is None else version)) as pages:
        backfill_plan(await anext(pages), order, pipeline.policy)
