"""Tables copied to an S3 server, and read from there."""

from dataclasses import dataclass
from pathlib import Path

import anyio

from tailer.config.tables import TableRef, open_files
from tailer.engine.local import LocalEngine
from tailer.plan import ChangePlan
from tailer.stores.s3 import S3Options
from tailer.stores.stores import Stores
from tailer.table_log import TableLog
from tests.support.follow import Followed
from tests.support.s3.server import S3Server

__all__ = ["RemoteTable"]


@dataclass(frozen=True)
class RemoteTable:
    """A table at `location`, in the store that `stores` know."""

    location: str
    stores: Stores

    @classmethod
    def copied(cls, table: Path, server: S3Server, bucket: str) -> "RemoteTable":
        """Copy a local table, file by file, below its own name."""
        for file in sorted(path for path in table.rglob("*") if path.is_file()):
            key = f"{table.name}/{file.relative_to(table)}"
            server.client.put_object(Bucket=bucket, Key=key, Body=file.read_bytes())
        stores = Stores(((f"s3://{bucket}", S3Options(endpoint=server.endpoint)),))
        return cls(f"s3://{bucket}/{table.name}", stores)

    def follow(self, first: int) -> list[Followed]:
        """Return the changes of all versions from `first` on."""
        found: list[Followed] = []
        anyio.run(self._follow, first, found)
        return found

    def follow_until_error(self, first: int = 0) -> tuple[list[Followed], Exception | None]:
        """Return the versions that could be followed, and the error that ended this, if any."""
        found: list[Followed] = []
        try:
            anyio.run(self._follow, first, found)
        except Exception as error:  # noqa: BLE001 - the caller judges it
            return found, error
        return found, None

    def plans(self, first: int, most: int) -> list[ChangePlan]:
        """Return up to `most` plans from `first` on."""
        return anyio.run(self._plans, first, most)

    def snapshot(self, version: int | None = None) -> list[Followed]:
        """Return the pages of the snapshot of `version` (None: the latest)."""
        return anyio.run(self._snapshot, version)

    async def _follow(self, first: int, found: list[Followed]) -> None:
        table, engine = self._opened()
        await table.seek(first)
        while (plan := await table.next_plan()) is not None:
            found.append(await _run(plan, engine))

    async def _plans(self, first: int, most: int) -> list[ChangePlan]:
        table, _ = self._opened()
        await table.seek(first)
        found: list[ChangePlan] = []
        while len(found) < most and (plan := await table.next_plan()) is not None:
            found.append(plan)
        return found

    async def _snapshot(self, version: int | None) -> list[Followed]:
        table, engine = self._opened()
        newest = await table.latest() if version is None else version
        return [await _run(plan, engine) async for plan in table.snapshot_plans(newest)]

    def _opened(self) -> tuple[TableLog, LocalEngine]:
        return TableRef(self.location).open(self.stores), LocalEngine(files=open_files(self.stores))


async def _run(plan: ChangePlan, engine: LocalEngine) -> Followed:
    async with engine.run([plan]) as batches:
        return Followed(plan, tuple([batch async for batch in batches]))
