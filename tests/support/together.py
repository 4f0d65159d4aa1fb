"""Sinks that take batches together, and remember which."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pyarrow as pa

from tailer.events import ChangeBatch
from tailer.sink import SinkTransaction, TransactionWrapper
from tailer_sinks.testing import FaultySink
from tests.support.streams import Destination

__all__ = ["Together", "TogetherWhole"]


class Together(FaultySink):
    """A sink that takes batches together, and remembers them so."""

    def __init__(self, destination: Destination) -> None:
        super().__init__(destination.sink())
        self.taken: list[list[ChangeBatch]] = []

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator[SinkTransaction]:
        async with super().begin(app_id, schema) as transaction:
            yield TogetherTransaction(transaction, self.taken)


class TogetherWhole(Together):
    """The same, for whole versions only."""

    @property
    def splits_versions(self) -> bool:
        return False


class TogetherTransaction(TransactionWrapper):
    writes_together = True

    def __init__(self, transaction: SinkTransaction, taken: list[list[ChangeBatch]]) -> None:
        super().__init__(transaction)
        self._taken = taken

    async def write(self, batch: ChangeBatch) -> None:
        await self.write_all([batch])

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        self._taken.append(list(batches))
        for batch in batches:
            await self._transaction.write(batch)
