"""Our tasks on executors, which have the release of lake-tailer that the driver has.

Work travels to executors pickled. Another release there may have other fields, or take the same ones for something
else. So a `SameRelease` travels ahead of the work: unpickled by another release, it raises, before anything else is
unpickled. Spark passes on nothing but text, in which the driver finds the error again (`unfit_executors`).

The release is in the package's metadata. Sources without it, as in a zip file, are of the release `unknown`.

`our_task` is around each of our tasks. After every task, Spark makes the worker collect all garbage before it takes the
next one: up to 50 ms, because modules consist of many thousands of objects. Whatever exists at the end of our first
task lives as long as the process, so `gc.freeze` excludes it from collections: a task takes 8 ms of Python instead of
44.
"""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from pyspark import TaskContext

from tailer.errors import ConfigError

__all__ = ["SameRelease", "our_task", "unfit_executors"]

_SAID = re.compile(r"executors have lake-tailer [\w.+!]+, and the driver has [\w.+!]*\w")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']*)'")
_REMEDY = "Install the same release for Spark's Python on all machines: see tailer.spark.session."


class SameRelease:
    """Survives pickle only where lake-tailer is of the release that pickled it; raises `ConfigError` elsewhere."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Return how to make it again, with the release of this process."""
        return _same_release, (_own_release(),)


def unfit_executors(text: str) -> ConfigError | None:
    """Return why executors cannot run our code, if Spark's text says so: what `SameRelease` raised, or a module."""
    if said := _SAID.search(text):
        return ConfigError("spark", said[0], _REMEDY)
    if missing := _MISSING.search(text):
        remedy = "Let PYSPARK_PYTHON name a Python with lake-tailer on all their machines: see tailer.spark.session."
        return ConfigError("spark", f"executors do not have the Python module {missing[1]!r}", remedy)
    return None


def _same_release(drivers: str) -> SameRelease:
    own = _own_release()
    if own != drivers:
        raise ConfigError("spark", f"executors have lake-tailer {own}, and the driver has {drivers}", _REMEDY)
    return SameRelease()


@cache
def _own_release() -> str:
    try:
        return version("lake-tailer")
    except PackageNotFoundError:
        return "unknown"


@contextmanager
def our_task() -> Iterator[None]:
    """Wrap each of our tasks. Outside of executors it does nothing."""
    try:
        yield
    finally:
        if TaskContext.get() is not None and not gc.get_freeze_count():
            gc.freeze()
