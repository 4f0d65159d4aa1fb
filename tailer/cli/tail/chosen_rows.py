"""The rows that `tail` shows: up to a number, and counted."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from tailer.cli.display.amounts import count, duration
from tailer.cli.tail.explanation import Explainer
from tailer.errors import SinkRejected
from tailer.events import CHANGE_TYPE, ChangeBatch, ChangeType, ControlEvent
from tailer.plan import ChangePlan, TaskKind
from tailer.sink import AtLeastOnceSink

__all__ = ["ChosenRows", "EnoughShownError", "HiddenUpdates"]

_UPDATES: Final = (ChangeType.UPDATE_PREIMAGE.value, ChangeType.UPDATE_POSTIMAGE.value)
_NAMES: Final = {"insert": "inserted", "update_postimage": "updated", "delete": "deleted"}


class HiddenUpdates:
    """Says once that `--type`, which chose `types` (none: all), hides updates that no rule computes.

    `computes`: whether updates are computed.
    """

    def __init__(self, types: frozenset[str], computes: bool, say: Callable[[str], None]) -> None:
        self._is_due = not computes and not types.isdisjoint(_UPDATES) and not types.issuperset(("insert", "delete"))
        self._say = say

    def note(self, plan: ChangePlan) -> None:
        """Note a plan whose rows come."""
        if self._is_due and {TaskKind.DELETE, TaskKind.INSERT} <= {task.kind for task in plan.tasks}:
            self._is_due = False
            what = f"version {plan.version} deletes and inserts rows, and --type hides those that together are updates"
            self._say(f"{what}; --compute-updates with --key makes them updates")


class EnoughShownError(Exception):
    """The cause of the error that ends the stream after the last row that is wanted."""


def _first_rows(batch: ChangeBatch, most: int) -> ChangeBatch:
    """Return the first rows, at most so many, but one more where that would cut an update in half."""
    if most < len(batch):
        most += batch.rows.column(CHANGE_TYPE).slice(most - 1, 2).to_pylist() == list(_UPDATES)
    return batch.slice(0, most)


class ChosenRows(AtLeastOnceSink):
    """Hands changes over to `sink`, up to `limit` (None: all of them).

    Each image of an update is a row; an update whose first image is the last row is handed over whole. After the last
    row, `SinkRejected` ends the stream, with an `EnoughShownError` as its cause.

    `explainer`: adds a column to the rows; None: they stay as they are.
    """

    def __init__(
        self,
        sink: AtLeastOnceSink,
        limit: int | None = None,
        explainer: Explainer | None = None,
    ) -> None:
        self.name = sink.name
        self.writes_together = sink.writes_together
        self._sink = sink
        self._limit = limit
        self._explainer = explainer
        self._counts: Counter[str] = Counter()
        self._versions: set[int] = set()

    async def write(self, batch: ChangeBatch) -> None:
        """See `AtLeastOnceSink.write`."""
        await self.write_all([batch])

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        """See `AtLeastOnceSink.write_all`."""
        left = None if self._limit is None else self._limit - self._counts.total()
        chosen: list[ChangeBatch] = []
        for batch in batches:
            if left is not None and left <= 0:
                break
            some = batch
            if left is not None:
                some = _first_rows(batch, left)
                left -= len(some)
            if len(some):
                chosen.append(some if self._explainer is None else self._explainer.explained(some))
        if chosen:
            await self._sink.write_all(chosen)
        for batch in chosen:
            self._counts.update(batch.rows.column(CHANGE_TYPE).to_pylist())
            self._versions.add(batch.version)
        if left is not None and left <= 0:
            await self._sink.flush()
            raise SinkRejected(self.name, "enough was shown") from EnoughShownError()

    async def announce(self, event: ControlEvent) -> None:
        """See `AtLeastOnceSink.announce`."""
        await self._sink.announce(event)

    async def flush(self) -> None:
        """See `AtLeastOnceSink.flush`."""
        await self._sink.flush()

    async def aclose(self) -> None:
        """See `AtLeastOnceSink.aclose`."""
        await self._sink.aclose()

    def summary(self, seconds: float) -> str:
        """Return the sentence about what was shown in so many seconds."""
        kinds = [f"{self._counts[kind]:,} {name}" for kind, name in _NAMES.items()]
        kinds += [f"{number:,} {kind}" for kind, number in self._counts.items() if kind not in (*_NAMES, _UPDATES[0])]
        versions = count(len(self._versions), "version")
        return f"{', '.join(kinds)}; in {versions} with changes; {duration(seconds)}"
