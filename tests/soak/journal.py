"""The findings of a soak in a file, a line of JSON for each epoch, from which the same command goes on."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.soak.report import Outcome

__all__ = ["VERSION", "Journal", "JournalError"]

VERSION: Final = 1


class JournalError(Exception):
    """The file cannot be continued."""


class Journal:
    """The file at `path`, of a soak of the tree's `commit`. `outcomes`: those that it had when this was made.

    Raises `JournalError` for a file of another version of this module, of another commit, or with a broken line.
    """

    def __init__(self, path: Path, commit: str) -> None:
        self._path = path
        self._commit = commit
        self.outcomes: Final[list[Outcome]] = []
        lines = path.read_text().splitlines() if path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                found = json.loads(line)
                version, of_commit, outcome = found["version"], found["commit"], found["outcome"]
            except (ValueError, TypeError, KeyError) as error:
                raise JournalError(f"{path}: line {number} is broken; remove the line to go on") from error
            if (version, of_commit) != (VERSION, commit):
                what = f"commit {of_commit} and version {version}, not of commit {commit} and version {VERSION}"
                raise JournalError(f"{path}: the soak is of {what}; name another file to begin a new one")
            self.outcomes.append(_outcome(outcome))

    def append(self, outcome: Outcome) -> None:
        """Write the findings of the next epoch."""
        line = json.dumps({"version": VERSION, "commit": self._commit, "outcome": vars(outcome)})
        with self._path.open("a") as file:
            file.write(f"{line}\n")


def _outcome(found: dict[str, Any]) -> Outcome:
    counted = {name: Counter(found[name]) for name in ("events", "verified", "faults")}
    figures = {name: Counter(each) for name, each in found["figures"].items()}
    return Outcome(**(found | counted | {"figures": figures}))
