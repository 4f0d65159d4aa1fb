"""Where jars are kept: one answer for the Makefile, the tests and the demo.

Each set of jars has a pom, and its directory is named after that pom's content: another version is another directory,
and a fetch is never half right. It lies outside the tree because it outlives a checkout. Runs on a bare Python: the
Makefile asks before anything is installed.
"""

import hashlib
import os
import sys
from pathlib import Path

__all__ = ["MissingJarsError", "jars", "jars_dir"]

_TESTS = Path(__file__).resolve().parents[1]
# What says where a set lies instead, and its pom.
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
    """The directory `make setup` fills with a set of jars; the set's variable points somewhere else."""
    variable, pom = _SETS[name]
    if chosen := os.environ.get(variable):
        return Path(chosen)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "lake-tailer" / "jars" / hashlib.sha256(pom.read_bytes()).hexdigest()[:12]


def jars(name: str = "delta") -> list[Path]:
    """Every jar of a set. Raises `MissingJarsError`."""
    found = sorted(jars_dir(name).glob("*.jar"))
    if not found:
        message = f"no jars in {jars_dir(name)}: `make setup` fetches them"
        raise MissingJarsError(message)
    return found


if __name__ == "__main__":
    print(jars_dir(*sys.argv[1:]))
