"""The contract of a sink as a test suite, and `FaultySink`: for authors of sinks, ours and others.

Passing `SinkTests` is what "a sink" means. Subclass it in a test module; pytest with anyio's plugin does the rest::

    class TestMySink(SinkTests):
        @pytest.fixture(autouse=True)
        def destination(self, tmp_path: Path) -> None:
            self.path = tmp_path                                       # empty, and the test's own

        def make_sink(self) -> MySink:
            return MySink("mine", self.path)                           # a new instance over that destination

        async def delivered(self, app_id: str) -> list[dict[str, Any]]:
            return flat_rows(...)                                      # read back, not through the sink

A schema change and a gap are announced between the rows. If types leave no place for a schema change
(`reports_schema_changes = False`), it shows in the destination's schema.

A sink that is an `AtLeastOnceSink` is tested inside `tailer.progress.recorded.Recorded`, with `exactly_once = False`:
its rows may be early or repeated, and everything else holds. For asserts that explain themselves call
`pytest.register_assert_rewrite("tailer_sinks.testing")` in your `conftest.py`.

Rows are compared as flat JSON values (`tailer_sinks.encoding`), which distinguish any two values, with any reader.
"""

from tailer_sinks.testing.contract import SinkTests
from tailer_sinks.testing.faults import Fault, FaultySink, Kind, Step
from tailer_sinks.testing.rows import DELTA_TYPES, change_batch, flat_rows

__all__ = ["DELTA_TYPES", "Fault", "FaultySink", "Kind", "SinkTests", "Step", "change_batch", "flat_rows"]
