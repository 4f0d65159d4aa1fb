"""The release of lake-tailer on executors: that of the driver.

Work travels to executors pickled. Another release there may have other fields, or take the same ones for something
else. So a `SameRelease` travels ahead of the work: unpickled by another release, it raises, before anything else is
unpickled. Spark passes on nothing but text, in which the driver finds the error again (`unfit_executors`).

The release is in the package's metadata. Sources without it, as in a zip file, are of the release `unknown`.
"""

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from tailer.errors import ConfigError

__all__ = ["SameRelease", "unfit_executors"]

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
