"""What a pipeline is told to do where there is a choice."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Carryovers", "OnDataLoss", "OnSchemaChange", "PairingRules", "Policy"]


class OnSchemaChange(StrEnum):
    """What to do when the columns of the rows change."""

    EVOLVE = "evolve"  # tell the sink, and go on
    FAIL = "fail"  # stop before the version that changes them


class OnDataLoss(StrEnum):
    """What to do when changes that are due cannot be read any more, and never will be."""

    FAIL = "fail"  # stop
    RESNAPSHOT = "resnapshot"  # tell the sink of the gap, deliver all rows of the latest version, go on behind it
    SKIP = "skip-with-gap-event"  # tell the sink of the gap, and go on behind it


@dataclass(frozen=True, slots=True)
class Policy:
    """`columns`: those to deliver, empty for all. `row_ids`: whether to add the columns of row tracking."""

    columns: tuple[str, ...] = ()
    row_ids: bool = False
    on_schema_change: OnSchemaChange = OnSchemaChange.EVOLVE
    on_data_loss: OnDataLoss = OnDataLoss.FAIL


class Carryovers(StrEnum):
    """What to do with rows that a version deletes and inserts unchanged, because their file was rewritten."""

    DROP = "drop"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class PairingRules:
    """Which rows of a version are changes, and which are images of one update (`tailer.pairing`).

    `compute_updates`: whether a delete and an insert of one row become the images of an update. `key`: the columns that
    tell rows apart; empty: row tracking does, where the table has it. `skip_unchanged`: whether to leave out updates
    that change nothing. `null_keys`: whether nulls in a key are equal, as they are in the key of a message.
    """

    carryovers: Carryovers = Carryovers.DROP
    compute_updates: bool = False
    key: tuple[str, ...] = ()
    skip_unchanged: bool = False
    null_keys: bool = False
