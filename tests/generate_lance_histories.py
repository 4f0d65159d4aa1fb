"""Write the histories of `lance_histories_data`: `python -m tests.generate_lance_histories [number ...]`, a minute.

Run it again, for all of them or for some, after a change of `tests.support.tables.lance_histories`, and commit the
archives. pylance names files at random, so archives differ between runs.
"""

import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.support.histories.recorded_lance import LANCE_HISTORIES, write
from tests.support.tables.lance_histories import LanceHistory

__all__ = ["COUNT", "is_cleaned", "is_stable", "is_v2", "main", "with_transactions"]

SEED: Final = 20261100
COUNT: Final = 20
VERSIONS: Final = 29
CLEANED_AT: Final = 9


def is_stable(number: int) -> bool:
    """Return whether a history has stable row ids."""
    return number % 2 == 0


def is_v2(number: int) -> bool:
    """Return whether the names of its manifests count down (V2)."""
    return number % 4 < 2


def with_transactions(number: int) -> bool:
    """Return whether its transactions can be read."""
    return number % 8 < 4


def is_cleaned(number: int) -> bool:
    """Return whether its first versions are cleaned up, but for those with a tag."""
    return number >= COUNT - 4


def make(number: int, folder: Path) -> None:
    """Make one history and write it."""
    folder.mkdir()
    history = LanceHistory(folder / "t", SEED + number, is_stable(number), is_v2(number))
    if is_cleaned(number):
        history.grow(CLEANED_AT)
        history.tag(history.open(CLEANED_AT // 2))
        history.clean_up()
    history.grow(VERSIONS)
    archive = LANCE_HISTORIES / f"{number:02d}.tar.xz"
    write(history, archive, with_transactions=with_transactions(number))
    print(f"{archive.name}: {archive.stat().st_size} bytes, {len(history.rows)} versions", *history.operations.values())


def main() -> None:
    """Write all histories, or those with the given numbers."""
    LANCE_HISTORIES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for number in [int(each) for each in sys.argv[1:]] or range(COUNT):
            make(number, Path(scratch) / str(number))


if __name__ == "__main__":
    main()
