"""`UndividedSink`: progress that cannot be read yet."""

from collections.abc import Callable

import pytest

from sinks.memory import MemorySink
from tailer.delta.table import DeltaTableLog
from tailer.errors import SinkUnavailable
from tailer.shards.resharding import Layout, UndividedSink
from tailer.sink import Progress, Sink, is_layout
from tailer.start import Start
from tailer.stores.local import LocalStore
from tests.support.streams import APP, Growing

pytestmark = pytest.mark.anyio


class Hidden(MemorySink):
    """A sink whose progress cannot be read until it was asked for that of the stream itself."""

    def __init__(self) -> None:
        super().__init__("memory")
        self.asked: list[str] = []

    async def progress(self, app_id: str) -> Progress | None:
        """Raise until the stream was asked for twice."""
        self.asked.append(app_id)
        if self.asked.count(APP) < 2:
            raise SinkUnavailable("memory", "a transaction is open")
        return await super().progress(app_id)


async def test_the_stream_is_asked_for_where_the_layout_cannot_be_read(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    table = Growing(tmp_path_factory.mktemp("t"))
    inner = Hidden()
    make: Callable[[], Sink] = lambda: inner  # noqa: E731 - typed
    layout = Layout("p", DeltaTableLog(LocalStore(table.path)), inner, make)
    sink = UndividedSink(inner, "p", layout, Start.parse("earliest"))
    for _ in range(2):
        with pytest.raises(SinkUnavailable):
            await sink.progress(APP)
    assert await sink.progress(APP) is None
    assert [is_layout(each) for each in inner.asked] == [True, False, True, False, True, False]
