"""Archives of the classes that a Java server loads (Java's class data sharing): with one, Java starts in half the time.

Java ignores an archive that was made with another Java, other jars or another order of jars.
"""

from pathlib import Path
from typing import Final

__all__ = ["archive_classes", "share_classes"]

_NO_REMARKS: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def share_classes(archive: Path) -> tuple[str, ...]:
    """Return the options to start with an archive; none if there is none."""
    return (f"-XX:SharedArchiveFile={archive}", *_NO_REMARKS) if archive.exists() else ()


def archive_classes(archive: Path) -> tuple[str, ...]:
    """Return the options to write an archive when Java ends."""
    return (f"-XX:ArchiveClassesAtExit={archive}", *_NO_REMARKS)
