"""The release of lake-tailer on executors: that of the driver.

Work travels to executors pickled. Another release there may have other fields, or take the same ones for something
else. So a `SameRelease` travels ahead of the work: unpickled by another release, it raises, before anything else is
unpickled. Spark passes on nothing but text, in which the driver finds the error again (`stale_release`).

The release is in the package's metadata. Sources without it, as in a zip file, are of the release `unknown`.
"""

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from tailer.errors import ConfigError

__all__ = ["SameRelease", "stale_release"]

_SAID = re.compile(r"executors have lake-tailer [\w.+!]+, and the driver has [\w.+!]*\w")
_REMEDY = "Install the same release for Spark's Python on all machines: see tailer.spark.session."


class SameRelease:
    """Survives pickle only where lake-tailer is of the release that pickled it; raises `ConfigError` elsewhere."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Return how to make it again, with the release of this process."""
        return _same_release, (_own_release(),)


def stale_release(text: str) -> ConfigError | None:
    """Return the error that `SameRelease` raised on an executor, if it is in Spark's text."""
    said = _SAID.search(text)
    return None if said is None else ConfigError("spark", said[0], _REMEDY)


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
