"""The division of a pipeline's rows into shards: how many there are, and by what a row belongs to one of them.

While shards have reached different places, rows must stay where they are: a row that moves to a shard that is ahead is
lost, and one that moves to a shard behind comes twice. If the sink has a key, rows belong to shards by its columns. If
not, they belong by their tasks. Which tasks a version has, and which rows they have, depends on all that decides how
rows are read and compared: the rules, the condition, the chosen columns, whether row ids are among them, and `changes`.

A sink stores the division as the version of a position, so it is a persisted format: the number of shards, plus
`LAYOUT_SHARDS` times the rules. The rules are one more than the CRC-32, modulo 2**28, of JSON: `{"key":[...]}`, or
`{"changes":"compare","columns":[...],"row_ids":true,"rules":{...},"select":"...","where":"..."}`, without what is not
chosen, and with what `tailer.changelog.task_ids.unusual` returns. If they are 0, nobody knows them: a reset or a former
release has stored the number, or the pipeline is undivided.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from tailer.changelog.rules import PairingRules
from tailer.changelog.task_ids import unusual
from tailer.config.pipelines import PipelineSettings
from tailer.pipeline.policy import ChangeSource, Policy
from tailer.plan import Position
from tailer.sink import LAYOUT_SHARDS, Sink, shards_in

__all__ = ["UNDIVIDED", "Division"]

_RULES: Final = 2**28


@dataclass(frozen=True, slots=True)
class Division:
    """`shards` streams, 0 for an undivided pipeline, with rows by `rules`; 0: not known."""

    shards: int
    rules: int = 0

    @classmethod
    def of(cls, settings: PipelineSettings, sink: Sink) -> "Division":
        """Return the division of a pipeline whose shards go to `sink`."""
        return cls(settings.shards, _number(sink.demands.key, settings.pairing, settings.policy))

    @classmethod
    def stored(cls, position: Position) -> "Division":
        """Return the division that is stored as `end` or `opening`."""
        return cls(shards_in(position.version), position.version // LAYOUT_SHARDS)

    @property
    def end(self) -> Position:
        """The position that stands for it while it is in force."""
        return Position.end(self._version)

    @property
    def opening(self) -> Position:
        """The position that stands for it while it is being left."""
        return Position.opening(self._version)

    @property
    def _version(self) -> int:
        return self.shards + LAYOUT_SHARDS * self.rules

    def __str__(self) -> str:
        """Describe how rows are delivered."""
        return f"in {self.shards} shards" if self.shards else "undivided"


UNDIVIDED: Final = Division(0)


def _number(key: Sequence[str], rules: PairingRules, policy: Policy) -> int:
    text: dict[str, Any] = {"key": list(key)}
    if not key:
        text = {"rules": unusual(rules)}
        text |= {"columns": sorted(policy.columns)} if policy.columns else {}
        text |= {"row_ids": True} if policy.row_ids else {}
        texts = {"select": policy.select, "where": policy.where}
        text |= {name: value for name, value in texts.items() if value is not None}
        text |= {"changes": policy.changes.value} if policy.changes is not ChangeSource.FEED else {}
    canonical = json.dumps(text, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return 1 + crc32(canonical.encode("ascii")) % _RULES
