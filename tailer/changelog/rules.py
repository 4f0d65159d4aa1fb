"""The rules by which rows of a rewritten version are compared.

Every field is part of task numbers, which are persisted: read `tailer.changelog.task_ids` before adding one.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Carryovers", "PairingRules"]


class Carryovers(StrEnum):
    """Treatment of rows that a version deletes and inserts unchanged because their file was rewritten."""

    DROP = "drop"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class PairingRules:
    """Rules for comparing the rows of a version (`tailer.changelog.carryovers`).

    `compute_updates`: whether a delete and an insert of one row become the images of an update. `key`: the columns that
    identify a row; empty: row ids do, where the table tracks rows. `skip_unchanged`: whether to leave out updates that
    change nothing. `null_keys`: whether nulls in a key are equal, as they are in the key of a message.
    """

    carryovers: Carryovers = Carryovers.DROP
    compute_updates: bool = False
    key: tuple[str, ...] = ()
    skip_unchanged: bool = False
    null_keys: bool = False
