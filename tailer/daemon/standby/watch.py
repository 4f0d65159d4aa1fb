"""The decision of a standby to take over, from the heartbeats that it has seen, by its own clock."""

from typing import Final

from tailer.sink import Heartbeat

__all__ = ["Watch"]


class Watch:
    """The looks of the instance `instance`, which takes over after `silence_s` seconds without a new heartbeat.

    `seen`: the last heartbeat.
    """

    def __init__(self, instance: str, silence_s: float) -> None:
        self._instance: Final = instance
        self._silence_s: Final = silence_s
        self._since_s: float | None = None
        self.seen: Heartbeat | None = None
        self.may_resume = True

    def see(self, found: Heartbeat | None, asked_s: float) -> bool:
        """Note a heartbeat that was asked for at `asked_s`. Return whether nobody is active.

        The time before the question counts: a standby that was frozen after the answer learns nothing from the time
        that has passed since. None: there is no heartbeat. One of an earlier term was under way for long, and tells
        nothing; nor does one that has gone, such as with its folder: the active instance sends another.
        """
        is_late = self.seen is not None and (found is None or found.rank < self.seen.rank)
        if self._since_s is None or not (is_late or found == self.seen):
            self._since_s = asked_s
        if not is_late:
            self.seen = found
            is_own = found is not None and found.instance == self._instance and self.may_resume
            if found is None or found.released or is_own:
                return True
        return asked_s - self._since_s >= self._silence_s

    def miss(self) -> None:
        """Note a look without an answer: silence is measured anew, for the active instance may have had none either."""
        self._since_s = None

    def begin(self, *, may_resume: bool) -> None:
        """Begin to watch. `may_resume`: take over at once if our own heartbeat is still the last one."""
        self._since_s, self.may_resume = None, may_resume
