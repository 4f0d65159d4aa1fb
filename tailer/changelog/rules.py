"""The rules by which rows of a rewritten version are compared."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Carryovers", "PairingRules"]


class Carryovers(StrEnum):
    """What to do with rows that a version deletes and inserts unchanged, because their file was rewritten."""

    DROP = "drop"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class PairingRules:
    """Which rows of a version are changes, and which are images of one update (`tailer.changelog.carryovers`).

    `compute_updates`: whether a delete and an insert of one row become the images of an update. `key`: the columns that
    tell rows apart; empty: row tracking does, where the table has it. `skip_unchanged`: whether to leave out updates
    that change nothing. `null_keys`: whether nulls in a key are equal, as they are in the key of a message.
    """

    carryovers: Carryovers = Carryovers.DROP
    compute_updates: bool = False
    key: tuple[str, ...] = ()
    skip_unchanged: bool = False
    null_keys: bool = False
