"""Tables of other projects' writers, with known answers: their location, and how to read the answers.

They are read in place, beside the checkout in `../shared/golden`; `LAKE_TAILER_GOLDEN` names another folder. Beside
that folder is `findings`, with tables that were once delivered wrong. A test that changes a table copies it first. A
missing table fails the test that names it: nothing is skipped. Tests that read them have the marker `golden`.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tiers import using

__all__ = ["ExpectedFeed", "archives_of_findings", "expected_feed", "expected_snapshot", "golden", "golden_delta"]

_ROOT = Path(os.environ.get("LAKE_TAILER_GOLDEN") or Path(__file__).resolve().parents[4] / "shared" / "golden")


@dataclass(frozen=True)
class ExpectedFeed:
    """The change rows of the reference reader for versions `first` to `last`, both inclusive."""

    first: int
    last: int
    schema: dict[str, Any]
    rows: list[dict[str, Any]]


def golden(*parts: str) -> Path:
    """Return a file or folder of the collection, such as `golden("variant", "primitives")`."""
    return _existing(_ROOT.joinpath(*parts), "put the golden tables beside the checkout or set LAKE_TAILER_GOLDEN")


def archives_of_findings() -> dict[str, Path]:
    """Return the archives of tables that were once delivered wrong, by name."""
    folder = _existing(_ROOT.parent / "findings", f"put the folder of findings beside {_ROOT}")
    found = [*folder.glob("*.tar.xz"), *folder.glob("new/*.tar.xz")]
    return {path.name.removesuffix(".tar.xz"): path for path in found}


def golden_delta(name: str) -> Path:
    """Return the folder of a Delta table."""
    return golden("delta", name)


def expected_feed(name: str) -> ExpectedFeed:
    """Return the expected change feed of a Delta table."""
    answer = json.loads(golden("delta", f"{name}.expected.json").read_bytes())
    return ExpectedFeed(answer["startingVersion"], answer["endingVersion"], answer["schema"], answer["rows"])


def expected_snapshot(name: str) -> Path:
    """Return the folder of Parquet files with the latest rows of a Delta table."""
    return golden("delta", f"{name}.expected-snapshot")


def _existing(path: Path, remedy: str) -> Path:
    using("golden")
    if not path.exists():
        message = f"no {path}: {remedy}"
        raise FileNotFoundError(message)
    return path
