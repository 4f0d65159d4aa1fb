"""The functions that run from one moment to another: what a newcomer must read of the way of a version.

Counted are the distinct functions in files of `tailer` and `sinks` that begin, or go on after an `await`, in all
threads of this process, so also those that wait for the ones below them. A function counts once however often it runs.
Comprehensions and lambdas belong to the function around them. Code that dataclasses generate is not counted, nor is
what runs when a module is imported.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from tailer.events import ChangeBatch
from tailer.pipeline.sink_writer import TransactionSize
from tests.house import ROOT

__all__ = ["Executed"]

_COUNTED: Final = tuple(f"{ROOT / folder}/" for folder in ("tailer", "sinks"))
_NO_CARRIERS: Final = (ChangeBatch, TransactionSize)  # the rows themselves, and what only counts them


@dataclass
class Executed:
    """The functions that ran while `counts`, in the order of their first call, and the messages that came out.

    `carriers`: the classes of `tailer` that hand rows on: a method had rows as a local variable, or returned or yielded
    some.
    """

    counts: bool = False
    codes: dict[CodeType, None] = field(default_factory=dict)
    carriers: set[str] = field(default_factory=set)
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def functions(self) -> list[tuple[str, str]]:
        """The module of each function, as a path below the root, and its qualified name."""
        return [(str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname) for code in self.codes]

    @property
    def modules(self) -> list[str]:
        """The modules of the functions."""
        return list(dict.fromkeys(module for module, _ in self.functions))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread, and all that begin meanwhile."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Watch and count until the block is left."""
        with self.watching():
            self.counts = True
            try:
                yield
            finally:
                self.counts = False

    def _note(self, frame: FrameType, event: str, value: object) -> None:
        """Note a call of a function, or a return from it with `value`."""
        if not self.counts or not frame.f_code.co_filename.startswith(_COUNTED):
            return
        is_function = frame.f_code.co_flags & CO_OPTIMIZED and frame.f_code.co_name[0] != "<"
        if event == "call" and is_function:
            self.codes.setdefault(frame.f_code)
        owner = frame.f_locals.get("self")
        is_ours = (
            owner is not None
            and not isinstance(owner, _NO_CARRIERS)
            and frame.f_code.co_filename.startswith(_COUNTED[0])
        )
        if is_ours and (_has_rows(value) or any(map(_has_rows, frame.f_locals.values()))):
            self.carriers.add(type(owner).__name__)


def _has_rows(value: object) -> bool:
    return isinstance(value, ChangeBatch) or (isinstance(value, list | tuple) and any(map(_has_rows, value)))
