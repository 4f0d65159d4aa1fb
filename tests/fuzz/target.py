"""A target: a parser, called with arbitrary bytes. Whatever `run` raises is a fault of the parser."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, TypeVar

from tailer.errors import TailerError

__all__ = ["NAMES", "Target", "corpus_of", "find", "found_of", "outcome"]

T = TypeVar("T")

_FOLDER: Final = Path(__file__).parent
NAMES: Final = tuple(sorted(path.stem for path in (_FOLDER / "targets").glob("*.py")))


@dataclass(frozen=True)
class Target:
    """`run`: parses bytes, and raises where that breaks a promise. `seeds`: makes the first inputs.

    `modules`: the parser's own, whose lines are counted. `seconds`: how long one input may take.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    modules: tuple[str, ...]
    seconds: int = 5


def find(name: str) -> Target:
    """Return the target of a name."""
    target = import_module(f"tests.fuzz.targets.{name}").TARGET
    assert isinstance(target, Target)
    return target


def corpus_of(name: str) -> Path:
    """Return the folder with the kept inputs of a target."""
    return _FOLDER / "corpus" / name


def found_of(name: str) -> Path:
    """Return the folder with the inputs of a target that once failed."""
    return _FOLDER / "found" / name


def outcome(work: Callable[[], T], *more: type[Exception]) -> T | None:
    """Return the result of `work`; None for an error of ours with a text and a hint, or one of `more`."""
    try:
        return work()
    except TailerError as error:
        assert isinstance(error.hint, str)  # noqa: PT017 - a text or nothing, whatever the error
    except more:
        pass
    return None
