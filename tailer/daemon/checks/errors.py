"""Errors that are gathered, so that one does not hide the next."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tailer.errors import SinkFenced, TailerError

__all__ = ["Errors"]


class Errors:
    """The errors that were `found`, each text once."""

    def __init__(self) -> None:
        self.found: list[TailerError] = []

    def add(self, *errors: TailerError) -> None:
        """Add errors. A pipeline that has moved on meanwhile is none: another instance delivers."""
        for error in errors:
            if not isinstance(error, SinkFenced) and str(error) not in map(str, self.found):
                self.found.append(error)

    @contextmanager
    def gathered(self, *, unless: Callable[[TailerError], bool] = lambda _: False) -> Iterator[None]:
        """Add the error that ends the block, `unless` it is none here."""
        try:
            yield
        except TailerError as error:
            if not unless(error):
                self.add(error)
