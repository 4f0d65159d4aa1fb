"""Transactions: the operation that made a version (Lance format, "Conflict resolution", `protos/transaction.proto`).

The name of the operation decides which changes of a version are only moves. It may be missing or unknown, so nothing
else may depend on it.
"""

from dataclasses import dataclass
from typing import Final

from tailer.formats.lance.protobuf import Message

__all__ = ["OPERATIONS", "Transaction", "parse_transaction"]

OPERATIONS: Final = {
    100: "Append",
    101: "Delete",
    102: "Overwrite",
    103: "CreateIndex",
    104: "Rewrite",
    105: "Merge",
    106: "Restore",
    107: "ReserveFragments",
    108: "Update",
    109: "Project",
    110: "UpdateConfig",
    111: "DataReplacement",
    112: "UpdateMemWalState",
    113: "Clone",
    114: "UpdateBases",
}
_FIRST_OPERATION: Final = min(OPERATIONS)


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction. `operation` is None where the operation is unknown or missing; `read_version` is its base."""

    read_version: int
    uuid: str
    operation: str | None


def parse_transaction(data: bytes) -> Transaction:
    """Read a transaction, from a `.txn` file or from a manifest. Raises `InvalidMessage`.

    Several operations in one transaction count as unknown.
    """
    message = Message(data)
    found = [field for field in message.fields() if field >= _FIRST_OPERATION]
    return Transaction(message.number(1), message.text(2), OPERATIONS.get(found[0]) if len(found) == 1 else None)
