"""The status of each pipeline of a process, which other threads read while pipelines come and go."""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from tailer.pipeline.status import PipelineStatus

__all__ = ["Statuses"]


class Statuses(Sequence[PipelineStatus]):
    """A sequence that is replaced as a whole, so that a reader in another thread sees all of one moment."""

    def __init__(self, statuses: Iterable[PipelineStatus] = ()) -> None:
        self._all = tuple(statuses)

    def replace(self, statuses: Iterable[PipelineStatus]) -> None:
        """Take these in place of all."""
        self._all = tuple(statuses)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[PipelineStatus]:
        return iter(self._all)

    @overload
    def __getitem__(self, index: int) -> PipelineStatus: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[PipelineStatus]: ...

    def __getitem__(self, index: int | slice) -> PipelineStatus | Sequence[PipelineStatus]:
        return self._all[index]
