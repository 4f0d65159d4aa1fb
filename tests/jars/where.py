"""The folders of jars, and of programs made with Go or npm, for the Makefile, the tests and the demo.

Each set of jars has a pom, and its folder is named after the pom's content: another version has another folder, and an
interrupted fetch is never used. It is outside the tree because it outlives a checkout. The module needs only a bare
Python: the Makefile runs it before anything is installed.
"""

import hashlib
import os
import sys
from pathlib import Path

__all__ = ["MissingJarsError", "azurite", "fake_gcs", "helm", "jars", "jars_dir", "promtool", "versitygw"]

_TESTS = Path(__file__).resolve().parents[1]
# The environment variable that overrides the folder of a set, and its pom.
_SETS = {
    "s3": ("LAKE_TAILER_S3_JARS", _TESTS / "jars" / "s3-pom.xml"),
    "iceberg-rest": ("LAKE_TAILER_ICEBERG_JARS", _TESTS / "jars" / "iceberg-rest-pom.xml"),
    "delta": ("LAKE_TAILER_JARS", _TESTS / "jars" / "pom.xml"),
    "iceberg-spark": ("LAKE_TAILER_ICEBERG_SPARK_JARS", _TESTS / "jars" / "iceberg-spark-pom.xml"),
    "kafka": ("LAKE_TAILER_KAFKA_JARS", _TESTS / "kafka" / "pom.xml"),
    "registry": ("LAKE_TAILER_REGISTRY_JARS", _TESTS / "kafka" / "registry-pom.xml"),
    "connect": ("LAKE_TAILER_CONNECT_JARS", _TESTS / "kafka" / "connect-pom.xml"),
    "spark-kafka": ("LAKE_TAILER_SPARK_KAFKA_JARS", _TESTS / "kafka" / "spark-pom.xml"),
}


_VERSITYGW = "v1.8.0"
_HELM = "v3.19.0"
_PROMTOOL = "v0.305.0"  # of the module; Prometheus calls it 3.5.0
_FAKE_GCS = "v1.56.1"
_AZURITE = "3.35.0"


class MissingJarsError(RuntimeError):
    """A set of jars, or a server, has not been fetched."""


def jars_dir(name: str = "delta") -> Path:
    """Return the folder that `make setup` fills with a set of jars, or the one in the set's variable."""
    variable, pom = _SETS[name]
    if chosen := os.environ.get(variable):
        return Path(chosen)
    return _cache() / "jars" / hashlib.sha256(pom.read_bytes()).hexdigest()[:12]


def jars(name: str = "delta") -> list[Path]:
    """Return every jar of a set. Raises `MissingJarsError`."""
    found = sorted(jars_dir(name).glob("*.jar"))
    if not found:
        message = f"no jars in {jars_dir(name)}: `make setup` fetches them"
        raise MissingJarsError(message)
    return found


def versitygw() -> Path:
    """Return the place of the program that `make setup` builds, or the one in LAKE_TAILER_VERSITYGW."""
    chosen = os.environ.get("LAKE_TAILER_VERSITYGW")
    return Path(chosen) if chosen else _cache() / "versitygw" / _VERSITYGW / "versitygw"


def helm() -> Path:
    """Return the place of the program that `make check-chart` builds."""
    return _cache() / "helm" / _HELM / "helm"


def promtool() -> Path:
    """Return the place of the program that `make check-alerts` builds, where no package has it."""
    return _cache() / "promtool" / _PROMTOOL / "promtool"


def fake_gcs() -> Path:
    """Return the place of fake-gcs-server, which `make setup` builds, or the one in LAKE_TAILER_FAKE_GCS."""
    chosen = os.environ.get("LAKE_TAILER_FAKE_GCS")
    return Path(chosen) if chosen else _cache() / "fake-gcs-server" / _FAKE_GCS / "fake-gcs-server"


def azurite() -> Path:
    """Return the folder into which `make setup` installs Azurite, or the one in LAKE_TAILER_AZURITE."""
    chosen = os.environ.get("LAKE_TAILER_AZURITE")
    return Path(chosen) if chosen else _cache() / "azurite" / _AZURITE


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lake-tailer"


if __name__ == "__main__":
    programs = {"azurite": azurite, "fake-gcs": fake_gcs, "helm": helm, "promtool": promtool, "versitygw": versitygw}
    (name,) = sys.argv[1:]
    print(programs[name]() if name in programs else jars_dir(name))
