"""Where the Java side of Delta is kept: one answer for the Makefile, the tests and the demo.

The directory is named after the content of `pom.xml`, so another version is another directory and a fetch is
never half right. It lies outside the tree because it outlives a checkout. Runs on a bare Python: the Makefile
asks before anything is installed.
"""

import hashlib
import os
from pathlib import Path

__all__ = ["jars_dir"]

_POM = Path(__file__).with_name("pom.xml")


def jars_dir() -> Path:
    """The directory `make` fills; `LAKE_TAILER_JARS` points somewhere else."""
    if chosen := os.environ.get("LAKE_TAILER_JARS"):
        return Path(chosen)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "lake-tailer" / "jars" / hashlib.sha256(_POM.read_bytes()).hexdigest()[:12]


if __name__ == "__main__":
    print(jars_dir())
