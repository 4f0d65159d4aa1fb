"""Errors of ours from executors, as the driver finds them again in Spark's text.

Spark passes on nothing but text. So an executor raises a `MarkedError`: its text has the pickled error between two
random marks.
"""

import pickle
import re
from base64 import b64decode, b64encode

from tailer.errors import ConfigError, TailerError
from tailer.spark.release import stale_release

__all__ = ["MarkedError", "raised_on_executor"]


class MarkedError(RuntimeError):
    """An error on its way to the driver, as text."""

    def __init__(self, mark: str, error: TailerError) -> None:
        super().__init__(f"{error}\n{mark}:{b64encode(pickle.dumps(error)).decode()}:{mark}")


def raised_on_executor(error: Exception, mark: str) -> TailerError | None:
    """Return what an executor raised as a `MarkedError`, or why it cannot run our code; None: neither is in `error`."""
    text = str(error)
    found = re.search(f"{mark}:([A-Za-z0-9+/=]+):{mark}", text)
    if found is not None:
        ours: TailerError = pickle.loads(b64decode(found[1]))
        return ours
    if (stale := stale_release(text)) is not None:
        return stale
    if "ModuleNotFoundError: No module named" in text:
        missing = text.partition("ModuleNotFoundError: No module named")[2].split("'")[1]
        remedy = "Let PYSPARK_PYTHON name a Python with lake-tailer on all machines: see tailer.spark.session."
        return ConfigError("spark", f"Spark's Python does not have the module {missing!r}", remedy)
    return None
