"""The folders of jars, for the Makefile, the tests and the demo.

Each set of jars has a pom, and its folder is named after the pom's content: another version has another folder, and an
interrupted fetch is never used. It is outside the tree because it outlives a checkout. The module needs only a bare
Python: the Makefile runs it before anything is installed.
"""

import hashlib
import os
import sys
from pathlib import Path

__all__ = ["MissingJarsError", "jars", "jars_dir"]

_TESTS = Path(__file__).resolve().parents[1]
# The environment variable that overrides the folder of a set, and its pom.
_SETS = {
    "delta": ("LAKE_TAILER_JARS", _TESTS / "jars" / "pom.xml"),
    "kafka": ("LAKE_TAILER_KAFKA_JARS", _TESTS / "kafka" / "pom.xml"),
    "registry": ("LAKE_TAILER_REGISTRY_JARS", _TESTS / "kafka" / "registry-pom.xml"),
    "connect": ("LAKE_TAILER_CONNECT_JARS", _TESTS / "kafka" / "connect-pom.xml"),
    "spark-kafka": ("LAKE_TAILER_SPARK_KAFKA_JARS", _TESTS / "kafka" / "spark-pom.xml"),
}


class MissingJarsError(RuntimeError):
    """A set of jars has not been fetched."""


def jars_dir(name: str = "delta") -> Path:
    """Return the folder that `make setup` fills with a set of jars, or the one in the set's variable."""
    variable, pom = _SETS[name]
    if chosen := os.environ.get(variable):
        return Path(chosen)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "lake-tailer" / "jars" / hashlib.sha256(pom.read_bytes()).hexdigest()[:12]


def jars(name: str = "delta") -> list[Path]:
    """Return every jar of a set. Raises `MissingJarsError`."""
    found = sorted(jars_dir(name).glob("*.jar"))
    if not found:
        message = f"no jars in {jars_dir(name)}: `make setup` fetches them"
        raise MissingJarsError(message)
    return found


if __name__ == "__main__":
    print(jars_dir(*sys.argv[1:]))
