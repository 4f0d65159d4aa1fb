"""Tables other projects' writers left behind, with known answers: where they are and how to read the answers.

They are read where they lie, beside the checkout in `../shared/golden`; `LAKE_TAILER_GOLDEN` names another
place. A test that changes a table copies it first. A missing table fails the test that names it: nothing is
skipped. Tests that read them have the marker `golden`.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tiers import using

__all__ = ["ExpectedFeed", "expected_feed", "expected_snapshot", "golden", "golden_delta"]

_ROOT = Path(os.environ.get("LAKE_TAILER_GOLDEN") or Path(__file__).resolve().parents[4] / "shared" / "golden")


@dataclass(frozen=True)
class ExpectedFeed:
    """The change rows the reference reader gives for versions `first` to `last`, both inclusive."""

    first: int
    last: int
    schema: dict[str, Any]
    rows: list[dict[str, Any]]


def golden(*parts: str) -> Path:
    """A file or folder of the collection, such as `golden("variant", "primitives")`."""
    using("golden")
    path = _ROOT.joinpath(*parts)
    if not path.exists():
        message = f"no {path}: put the golden tables beside the checkout or set LAKE_TAILER_GOLDEN"
        raise FileNotFoundError(message)
    return path


def golden_delta(name: str) -> Path:
    """A Delta table's folder."""
    return golden("delta", name)


def expected_feed(name: str) -> ExpectedFeed:
    """Return the expected change feed of a Delta table."""
    answer = json.loads(golden("delta", f"{name}.expected.json").read_bytes())
    return ExpectedFeed(answer["startingVersion"], answer["endingVersion"], answer["schema"], answer["rows"])


def expected_snapshot(name: str) -> Path:
    """The folder of Parquet files that hold the latest rows of a Delta table."""
    return golden("delta", f"{name}.expected-snapshot")
