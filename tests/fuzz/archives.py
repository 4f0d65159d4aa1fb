"""The files of recorded tables, read from their archives."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["files_of"]


def files_of(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file of an archive, in the order of names."""
    with tarfile.open(archive) as opened:
        for member in sorted(opened.getmembers(), key=lambda each: each.name):
            file = opened.extractfile(member)
            if file is not None:
                yield member.name, file.read()
