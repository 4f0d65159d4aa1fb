"""Names of manifests: from a listing of `_versions` to the versions of a dataset.

V1 names a manifest by its version. V2 subtracts the version from the largest unsigned 64-bit number and pads it to 20
digits, so that the newest version is listed first. A dataset uses one scheme: with both, a version could be missed.
"""

import re
from collections.abc import Iterable
from typing import Final

from tailer.errors import LogCorrupt

__all__ = ["LARGEST", "manifests"]

LARGEST: Final = 2**64 - 1
_DETACHED: Final = 2**63  # versions from here on belong to no history
_MANIFEST: Final = re.compile(r"([0-9]+)\.manifest")
_V2_DIGITS: Final = 20


def manifests(table: str, names: Iterable[str]) -> dict[int, str]:
    """Map each version to the name of its manifest, in ascending order.

    `names` are those in the `_versions` folder of `table`. Names that belong to no version are ignored: temporary,
    staged and detached manifests, and the hint. Raises `LogCorrupt` for a mixture of both schemes, and for a number
    that no writer gives to a version.
    """
    by_version: dict[int, str] = {}
    first: dict[bool, str] = {}
    for name in sorted(names):
        if (match := _MANIFEST.fullmatch(name)) is None:
            continue
        is_v2 = len(match[1]) == _V2_DIGITS
        version = LARGEST - int(match[1]) if is_v2 else int(match[1])
        if not 0 < version < _DETACHED or (not is_v2 and name.startswith("0")):
            raise LogCorrupt(table, f"_versions/{name}", "not the number of a version")
        first.setdefault(is_v2, name)
        by_version[version] = name
    if len(first) == 2:
        raise LogCorrupt(table, f"_versions/{first[False]}", f"named by version, but {first[True]} is not")
    return dict(sorted(by_version.items()))
