"""Mirrors of histories, judged after each of their transactions."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pyarrow as pa

from tailer.sink import Progress, Sink, SinkTransaction, SinkWrapper, TransactionWrapper
from tailer_sinks.testing.suite import row_text

__all__ = ["Judged", "counted"]


class Judged(SinkWrapper):
    """A sink whose table is compared after each transaction."""

    def __init__(self, sink: Sink, judge: Callable[[], None]) -> None:
        super().__init__(sink)
        self.judge = judge

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator[SinkTransaction]:
        """See `Sink.begin`."""
        async with self._sink.begin(app_id, schema) as transaction:
            yield _JudgedTransaction(transaction, self)


class _JudgedTransaction(TransactionWrapper):
    def __init__(self, transaction: SinkTransaction, sink: Judged) -> None:
        super().__init__(transaction)
        self._sink = sink

    async def commit(self, progress: Progress) -> None:
        await super().commit(progress)
        await anyio.to_thread.run_sync(self._sink.judge)


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    """Return rows as a multiset. A field that is null is one that is not there."""
    return Counter(row_text(_without_nulls(row)) for row in rows)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
