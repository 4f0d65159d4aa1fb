"""The numbers of messages of the versions in a transaction, by topic."""

from collections.abc import Mapping

from tailer_sinks.kafka.progress import Count

__all__ = ["Counts"]


class Counts:
    """The counts of versions that are not yet complete in the topics for rows."""

    def __init__(self) -> None:
        self._counts: dict[int, dict[str, Count]] = {}

    def add(self, version: int, topic: str, count: Count) -> None:
        """Count messages of a version."""
        of_version = self._counts.setdefault(version, {})
        of_version[topic] = of_version.get(topic, Count()).plus(count.events, count.dead_letters)

    def of(self, version: int) -> Mapping[str, Count]:
        """Return the counts of a version, in the order of topics' names."""
        return dict(sorted(self._counts.get(version, {}).items()))

    def total(self, version: int) -> Count:
        """Return the sum of a version's counts."""
        counts = self._counts.get(version, {}).values()
        return Count(sum(each.events for each in counts), sum(each.dead_letters for each in counts))

    def first(self, otherwise: int) -> int:
        """Return the first version that has any; `otherwise` without one."""
        return min(self._counts, default=otherwise)

    def clear(self) -> None:
        """Forget all."""
        self._counts.clear()
