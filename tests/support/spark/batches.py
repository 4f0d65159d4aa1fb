"""A table read as Spark's source reads it, without Spark: each micro-batch as splits, executed in any order."""

import pickle
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
from anyio import to_thread

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import Carryovers, PairingRules
from tailer.engine.local import LocalEngine
from tailer.events import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch, SchemaChange
from tailer.formats.delta.table import DeltaTableLog
from tailer.plan import ChangePlan
from tailer.spark.source.admission import Admission, Budget
from tailer.spark.source.plan_cache import Place
from tailer.spark.splits import Split, read_split
from tailer.start import StartPoint
from tailer.stores.local import LocalStore
from tests.support.follow import Followed, follow

__all__ = ["KEEP", "Fed", "PlainView", "feed_all", "placed", "places_of"]

KEEP: Final = PairingRules(Carryovers.KEEP)

Placed = tuple[int, int, int, str, tuple[Any, ...]]  # version, task, row, change type, values


class PlainView:
    """A view with every version in its own columns."""

    def plan(self, plan: ChangePlan, before: pa.Schema | None) -> ChangePlan:
        """See `tailer.spark.source.plan_cache.View.plan`."""
        return plan

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """See `tailer.spark.source.plan_cache.View.schema`."""
        return schema


@dataclass
class Fed:
    """The output of the source: rows with their positions, schema changes, and the end of each batch."""

    rows: Counter[Placed] = field(default_factory=Counter)
    changes: list[SchemaChange] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # rows of each batch


def placed(batches: Iterable[ChangeBatch]) -> Iterator[Placed]:
    """Return each row with its position. Floats as text: NaN is not equal to itself."""
    for batch in batches:
        own = batch.rows.select(batch.rows.schema.names[: -len(METADATA_FIELDS)])
        types = batch.rows[CHANGE_TYPE].to_pylist()
        values = zip(*([repr(value) for value in column.to_pylist()] for column in own.columns), strict=True)
        rows = list(values) if own.num_columns else [()] * len(batch)
        for index, kind, row in zip(batch.row_index.to_pylist(), types, rows, strict=True):
            yield batch.version, batch.task, index, kind, row


def places_of(path: Path, rules: PairingRules = KEEP, first: int = 0) -> Counter[Placed]:
    """Return the rows of `LocalEngine` for the versions from `first` on."""
    found: Counter[Placed] = Counter()
    versions: list[Followed] = follow(path, first, engine=ChangelogEngine(LocalEngine(), rules))
    for version in versions:
        found.update(placed(version.batches))
    return found


async def _feed(
    path: Path, point: StartPoint, budget: Budget, rules: PairingRules, net: bool, chance: random.Random, fed: Fed
) -> None:
    def opened() -> Admission:
        return Admission(DeltaTableLog(LocalStore(path)), PlainView(), rules, net=net)

    admission = opened()
    place = await admission.start(point)
    while True:
        if chance.random() < 0.2:
            admission = opened()  # as after a restart
        through = await admission.advance(place, budget)
        if through == place:
            return
        planner = opened() if chance.random() < 0.3 else admission
        found = await planner.work(place, through.position, through.table_id)
        work = [pickle.loads(pickle.dumps(split)) for split in found.splits()]
        chance.shuffle(work)
        batch: Counter[Placed] = Counter()
        for split in work:
            if isinstance(split, SchemaChange):
                fed.changes.append(split)
            else:
                batch.update(await to_thread.run_sync(_run, split))
        fed.rows.update(batch)
        fed.sizes.append(batch.total())
        place = through
        fed.places.append(place)


def _run(split: Split) -> list[Placed]:
    return list(placed(read_split(split)))


def feed_all(
    path: Path,
    point: StartPoint,
    budget: Budget,
    rules: PairingRules = KEEP,
    *,
    net: bool = False,
    seed: int = 0,
) -> Fed:
    """Read everything from `point` to the newest version, in micro-batches limited by `budget`."""
    fed = Fed()
    anyio.run(_feed, path, point, budget, rules, net, random.Random(seed), fed)
    return fed
