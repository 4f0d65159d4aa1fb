"""The division of a pipeline's rows into shards: how many there are, and by what a row belongs to one of them.

While shards have reached different places, rows must stay where they are: a row that moves to a shard that is ahead is
lost, and one that moves to a shard behind comes twice. With a key, rows belong to shards by its columns. Without one,
they belong by their tasks, and the rules of comparing and the chosen columns say which rows a task has.

A sink stores the division as the version of a position, so it is a persisted format: the number of shards, plus
`SHARDS` times the rules. These are one more than the CRC-32, modulo 2**28, of JSON, `{"key":[...]}` or
`{"columns":[...],"rules":{...}}`, without columns if there are all, and with the rules as
`tailer.changelog.task_ids.unusual` returns them. Without rules, 0, the number was stored by a release that did not note
them, by a reset, or by an undivided pipeline.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from tailer.changelog.rules import PairingRules
from tailer.changelog.task_ids import unusual
from tailer.config.pipelines import PipelineSettings
from tailer.plan import Position
from tailer.sink import Sink

__all__ = ["SHARDS", "UNDIVIDED", "Division"]

SHARDS: Final = 2**16  # more than a pipeline may have
_RULES: Final = 2**28


@dataclass(frozen=True, slots=True)
class Division:
    """`shards` streams, 0 for an undivided pipeline, with rows by `rules`; 0: not known."""

    shards: int
    rules: int = 0

    @classmethod
    def of(cls, settings: PipelineSettings, sink: Sink) -> "Division":
        """Return the division of a pipeline whose shards go to `sink`."""
        return cls(settings.shards, _number(sink.demands.key, settings.pairing, settings.policy.columns))

    @classmethod
    def stored(cls, position: Position) -> "Division":
        """Return the division that is stored as `end` or `opening`."""
        return cls(position.version % SHARDS, position.version // SHARDS)

    @property
    def end(self) -> Position:
        """The position that stands for it while it is in force."""
        return Position.end(self.shards + SHARDS * self.rules)

    @property
    def opening(self) -> Position:
        """The position that stands for it while it is being left."""
        return Position.opening(self.shards + SHARDS * self.rules)

    def __str__(self) -> str:
        """Describe how rows are delivered."""
        return f"in {self.shards} shards" if self.shards else "undivided"


UNDIVIDED: Final = Division(0)


def _number(key: Sequence[str], rules: PairingRules, columns: Sequence[str]) -> int:
    text: dict[str, Any] = {"key": list(key)}
    if not key:
        text = {"rules": unusual(rules)} | ({"columns": sorted(columns)} if columns else {})
    canonical = json.dumps(text, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return 1 + crc32(canonical.encode("ascii")) % _RULES
