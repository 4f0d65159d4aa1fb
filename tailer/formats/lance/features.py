"""Reader feature flags: supported, and refused (Lance format, "Feature Flags").

Flags hold for one version and are checked at every version. Only flags of readers matter here: a dataset whose writers
need more can be read. An unknown flag is refused, because its meaning may be that other files hold newer values. So are
stable row ids outside the manifest, for which the format has no flag.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tailer.errors import UnsupportedFeature
from tailer.formats.lance.manifest import Manifest

__all__ = ["FLAGS", "Answer", "refuse_unknown", "uses_stable_row_ids"]


class Answer(StrEnum):
    """Treatment of a dataset that has the flag."""

    SUPPORTED = "supported"  # its rules are followed
    IGNORED = "ignored"  # it requires nothing of a reader of rows
    REFUSED = "refused"  # the pipeline stops with its name


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `why`: how it is supported, why it may be ignored, or why it is refused.

    `is_paired`: whether the format demands the same flag for writers.
    """

    name: str
    answer: Answer
    why: str
    is_paired: bool = False


_STABLE_ROW_IDS: Final = 1 << 1

FLAGS: Final = {
    1 << 0: Flag("deletion files", Answer.SUPPORTED, "deleted rows are those in the deletion files"),
    _STABLE_ROW_IDS: Flag("stable row ids", Answer.SUPPORTED, "a row that only moved is no change"),
    1 << 2: Flag("data files of version 2", Answer.IGNORED, "each data file names its version"),
    1 << 3: Flag("table config", Answer.IGNORED, "the configuration is for writers"),
    1 << 4: Flag("base paths", Answer.SUPPORTED, "files are read from the base path that they name"),
    1 << 5: Flag("no transaction files", Answer.IGNORED, "transactions are read from manifests too"),
    1 << 6: Flag("data overlay files", Answer.REFUSED, "the files of newer values are not stable yet in the format"),
    1 << 7: Flag("covering indexes", Answer.IGNORED, "no index is used"),
    1 << 8: Flag("mixed versions of data files", Answer.SUPPORTED, "each data file names its version", is_paired=True),
    1 << 9: Flag("fragment reuse with stable row ids", Answer.REFUSED, "the reader of rows does not know it"),
    1 << 10: Flag("fragment reuse index", Answer.IGNORED, "no index is used", is_paired=True),
    1 << 11: Flag("managed blobs", Answer.REFUSED, "blobs may lie in other places than the dataset's"),
}


def refuse_unknown(manifest: Manifest, table: str) -> None:
    """Raise `UnsupportedFeature` for the first feature of readers that is refused or unknown."""
    flags = manifest.reader_feature_flags
    for bit in (1 << place for place in range(64)):
        if not flags & bit:
            continue
        flag = FLAGS.get(bit)
        if flag is None:
            raise UnsupportedFeature(table, f"the reader feature flag {bit}", manifest.version)
        named = f"the reader feature flag {bit} ({flag.name})"
        if flag.answer is Answer.REFUSED:
            raise UnsupportedFeature(table, named, manifest.version, flag.why)
        if flag.is_paired and not manifest.writer_feature_flags & bit:
            raise UnsupportedFeature(table, named, manifest.version, "without the flag for writers it has no meaning")
    if uses_stable_row_ids(manifest) and any(part.row_ids_are_apart for part in manifest.fragments):
        reason = "the reader of rows finds them in manifests alone"
        raise UnsupportedFeature(table, "row ids in a file of their own", manifest.version, reason)


def uses_stable_row_ids(manifest: Manifest) -> bool:
    """Return whether rows keep their ids when they move."""
    return bool(manifest.reader_feature_flags & _STABLE_ROW_IDS)
