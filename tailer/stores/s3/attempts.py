"""Further attempts at one request to S3: those that the clients do not make themselves.

The clients repeat a request without an answer a few times, and the pipeline retries after that. Neither looks for other
credentials, looks twice for a missing object, or reads an answer again whose body ended early.
"""

from dataclasses import dataclass
from typing import Final

from tailer.stores.s3.errors import NOT_FOUND, TornBody, error_code, is_expired
from tailer.stores.s3.traffic import unseen_fault, verb_of
from tailer.stores.traffic import FAULTS, Fault

__all__ = ["PAUSE_S", "Attempts"]

PAUSE_S: Final = 0.2


@dataclass(slots=True)
class Attempts:
    """The further attempts left for one request, for each reason. `store` and `operation`: for metrics."""

    store: str
    operation: str
    expired: int = 1
    torn: int = 2
    missing: int = 0

    def take(self, error: Exception) -> bool:
        """Return whether another attempt is due after this error, and count it. Count its fault, if nobody has."""
        if (fault := unseen_fault(error)) is not None:
            self._count(fault)
        if is_expired(error):
            self.expired -= 1
            return self.expired >= 0
        if isinstance(error, TornBody):
            self.torn -= 1
            return self.torn >= 0
        if error_code(error) in NOT_FOUND:
            self.missing -= 1
            if self.missing >= 0:
                self._count(Fault.NOT_FOUND_ONCE)
            return self.missing >= 0
        return False

    def _count(self, fault: Fault) -> None:
        FAULTS.add((self.store, verb_of(self.operation), fault), 1)
