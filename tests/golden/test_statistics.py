"""Statistics in the logs and footers of public tables, by all their writers: each value lies within them."""

from pathlib import Path
from typing import Final

import anyio
import pytest

from tailer.config.tables import TableRef
from tailer.errors import TailerError
from tailer.pipeline.policy import Policy
from tailer.start import Start, StartKind
from tests.support.oracle.public import unpack_public
from tests.support.oracle.ranges import check_task

pytestmark = pytest.mark.golden

FEWEST_BOUNDS: Final = 5000
FALSE: Final = {
    "kernel-rs/parsed-stats": "the log has bounds and no nulls of a column that the files lack",
}


async def known_bounds(path: Path) -> int:
    """Check the rows of all versions of a table, up to the first that is refused; return how many bounds are known."""
    log, known = TableRef(str(path), table_format="delta").open(policy=Policy(where="true")), 0
    try:
        await log.seek((await log.resolve(Start(StartKind.EARLIEST))).version)
        while (plan := await log.next_plan()) is not None:
            known += sum(map(check_task, plan.tasks))
        async for page in log.snapshot_plans(await log.latest()):
            known += sum(map(check_task, page.tasks))
    except TailerError:  # `test_public` says which
        return known
    return known


def test_each_value_is_in_its_ranges(tmp_path: Path) -> None:
    known: dict[str, int] = {}
    false: dict[str, str] = {}
    for name, path in unpack_public(tmp_path).items():
        if not name.startswith("lance/"):
            try:
                known[name] = anyio.run(known_bounds, path)
            except AssertionError as error:
                false[name] = str(error)
    assert false.keys() == FALSE.keys(), false
    assert sum(known.values()) > FEWEST_BOUNDS
    assert sum(bounds > 0 for bounds in known.values()) > len(known) / 2
