"""Findings of an examination, in sentences: the meaning of following a table."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain
from typing import Final

from tailer.cli.display.display import count, duration, size, versions
from tailer.cli.doctor.examination import Examination
from tailer.cli.doctor.feed import FEED, FILES, FeedCheck, FeedFault
from tailer.errors import FileVacuumed, VersionGone
from tailer.events import has_variant
from tailer.formats.inspection import TableProfile
from tailer.schema.columns import CHAR

__all__ = ["Finding", "Level", "best_key", "findings_of"]

_FEWEST_ROWS: Final = 100  # of a sample, to take a column whose values all differ for a key
_HOUR_S: Final = 3600
_DAY_MS: Final = 24 * _HOUR_S * 1000
_MANY_BYTES: Final = 1_000_000  # of a value: Kafka's brokers refuse larger messages by default
_MOST_SHOWN: Final = 3
_TELLING_BYTES: Final = 1_000_000  # smaller reads take what it takes to begin


class Level(StrEnum):
    """Weight of a finding."""

    OK = "ok"  # as it should be
    NOTE = "note"  # worth knowing
    WARN = "warn"  # may become a problem
    STOP = "stop"  # a pipeline would stop


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding, about a `topic`. `hint`: the next step; empty: none."""

    level: Level
    topic: str
    text: str
    hint: str = ""


def findings_of(examination: Examination) -> list[Finding]:
    """Return the findings, in the order of reading."""
    findings: list[Finding] = []
    if (profile := examination.profile) is not None:
        parts = (
            _table(examination, profile),
            _commits(examination),
            _cost(examination),
            _retention(examination, profile),
        )
        rest = (_key(examination, profile), _hazards(examination, profile), _history(examination, profile))
        findings += chain(*parts, *rest, () if examination.feed is None else _change_files(examination.feed))
    if examination.stop is not None:
        text = f"{type(examination.stop).__name__}: {examination.stop}"
        findings.append(Finding(Level.STOP, "following", text, examination.stop.hint))
    elif examination.sample.version is not None or examination.measured is not None:
        findings.append(Finding(Level.OK, "access", "this user may read the log and the data files that were tried"))
    return findings


def best_key(examination: Examination) -> tuple[str, ...]:
    """Return the columns that most likely identify a row; empty where there are none."""
    profile = examination.profile
    if profile is None:
        return ()
    if profile.keys:
        return profile.keys[0].columns
    return examination.sample.unique[:1] if examination.sample.rows >= _FEWEST_ROWS else ()


def _table(examination: Examination, profile: TableProfile) -> Iterator[Finding]:
    moment = datetime.fromtimestamp(profile.timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    columns = count(len(profile.schema), "column")
    begins = "" if examination.begins is None else f"; changes can be read from version {examination.begins} on"
    yield Finding(Level.OK, "table", f"{columns}; the newest version is {profile.version}, of {moment}{begins}")
    if profile.features:
        yield Finding(Level.OK, "features", f"{', '.join(profile.features)}: supported")
    if profile.feed is None:
        return
    if profile.feed:
        text = "on: for updates, deletes and merges, writers write change files, which are read as they are"
    else:
        text = "off, and not needed: where a commit rewrites files, old and new ones are compared to find the changes"
    yield Finding(Level.OK, "change feed", text)


def _commits(examination: Examination) -> Iterator[Finding]:
    if not examination.commits:
        return
    rate = examination.commits_per_hour
    operations = Counter(commit.operation or "unnamed" for commit in examination.commits)
    named = ", ".join(f"{number} {operation}" for operation, number in operations.most_common(_MOST_SHOWN))
    often = "too close together to say how often they come" if rate is None else _often(rate)
    number = len(examination.commits)
    looked = f"looked at the last {f'{number} commits' if number > 1 else 'commit'}"
    yield Finding(Level.OK, "commits", f"{looked} ({named})" + f", {often}" * (number > 1))


def _often(per_hour: float) -> str:
    if per_hour >= 1:
        return f"about {per_hour:,.0f} an hour"
    return f"about {per_hour * 24:,.1f} a day" if per_hour * 24 >= 1 else "less than one a day"


def _cost(examination: Examination) -> Iterator[Finding]:
    changing = examination.changing
    if not changing:
        if examination.commits:
            yield Finding(Level.NOTE, "cost", "none of these commits changed a row")
        return
    largest = max(changing, key=lambda commit: commit.size_bytes)
    text = f"a typical commit has {size(examination.typical_bytes)} of files to read"
    if largest.size_bytes > examination.typical_bytes:
        text += f", the largest {size(largest.size_bytes)} (version {largest.version})"
    yield Finding(Level.OK, "cost", text)
    compared = sum(commit.is_compared for commit in changing)
    if compared:
        text = (
            f"{compared} of {count(len(changing), 'commit')} with changes rewrote files, which are compared row by row"
        )
        yield Finding(Level.OK, "comparing", text)
    measured, typical_s, largest_s = (
        examination.measured,
        examination.seconds(examination.typical_bytes),
        examination.seconds(largest.size_bytes),
    )
    if measured is None or typical_s is None or largest_s is None:
        return
    what = f"the changes of version {measured.version} ({size(measured.size_bytes)}, {count(measured.rows, 'row')})"
    text = f"{what} took {duration(measured.seconds)} here"
    if measured.size_bytes >= _TELLING_BYTES:
        text += f"; by that, a typical commit takes {duration(typical_s)}"
        text += f" and the largest {duration(largest_s)}" * (largest.size_bytes > examination.typical_bytes)
    yield Finding(Level.OK, "speed", text)
    rate = examination.commits_per_hour
    if rate is not None and typical_s * rate > _HOUR_S:
        hint = "A change data feed or deletion vectors spare comparisons; docs/spark.md lets Spark compare."
        yield Finding(Level.WARN, "speed", "commits come faster than this machine can deliver them", hint)


def _retention(examination: Examination, profile: TableProfile) -> Iterator[Finding]:
    if profile.files_kept_ms is None or profile.log_kept_ms is None:
        text = "old versions are kept until somebody deletes them; a pipeline must have delivered them by then"
        yield Finding(Level.NOTE, "retention", text)
        return
    kept_ms = min(profile.files_kept_ms, profile.log_kept_ms)
    rate = examination.commits_per_hour
    number = "" if not rate else f", about {count(round(rate * kept_ms / _HOUR_S / 1000), 'commit')}"
    text = (
        f"VACUUM keeps replaced files for {duration(profile.files_kept_ms / 1000)}, log cleanup keeps commits for "
        f"{duration(profile.log_kept_ms / 1000)}: a pipeline may be behind by up to {duration(kept_ms / 1000)}{number}"
    )
    if kept_ms >= _DAY_MS:
        yield Finding(Level.OK, "retention", text)
        return
    names = "delta.deletedFileRetentionDuration and delta.logRetentionDuration"
    yield Finding(Level.WARN, "retention", text, f"Raise {names}, or set on_data_loss of the pipeline.")


def _key(examination: Examination, profile: TableProfile) -> Iterator[Finding]:
    if profile.row_ids:
        yield Finding(Level.OK, "row ids", "each row has an id, which pairs updates without a key")
    for declared in profile.keys:
        yield Finding(Level.OK, "key", f"{', '.join(declared.columns)}: {declared.source}")
    sample = examination.sample
    if sample.version is None or profile.keys:
        return
    rows = f"the {count(sample.rows, 'row')} of version {sample.version} that were read"
    if sample.rows < _FEWEST_ROWS:
        text = f"too few rows to tell ({sample.rows}); their values differ in {', '.join(sample.unique) or 'no column'}"
        yield Finding(Level.NOTE, "key", text, "If you know the columns that identify a row, set them as key.")
    elif sample.unique:
        others = ", ".join(sample.unique[1 : _MOST_SHOWN + 1])
        text = f"{sample.unique[0]} may be one: its values are all different in {rows}" + (
            f"; so are {others}" * bool(others)
        )
        yield Finding(Level.NOTE, "key", text, "Check that it identifies a row in the whole table.")
    elif not profile.row_ids:
        text = f"no column has only different values in {rows}: updates are delivered as a delete and an insert"
        yield Finding(Level.NOTE, "key", text, "If several columns identify a row together, set them as key.")


def _hazards(examination: Examination, profile: TableProfile) -> Iterator[Finding]:
    texts = list(profile.hazards)
    chars = [field.name for field in profile.schema if CHAR in (field.metadata or {})]
    if chars:
        texts.append(f"{_columns(chars)} CHAR: values are padded with spaces to their length, as Spark reads them")
    variants = [field.name for field in profile.schema if has_variant(field.type)]
    if variants:
        texts.append(f"{_columns(variants)} VARIANT: the option `variant` of sinks chooses the form (docs/delta.md)")
    if examination.sample.int96:
        columns = _columns(examination.sample.int96)
        texts.append(f"{columns} INT96 in files: moments are read as Spark reads them, to the microsecond")
    for text in texts:
        yield Finding(Level.NOTE, "hazard", text)
    largest = examination.sample.largest
    if largest is not None and largest.size_bytes > _MANY_BYTES:
        text = f"column {largest.column} has a value of {size(largest.size_bytes)}: Kafka refuses messages above 1 MB"
        hint = "Raise max.message.bytes of the topic and message.max.bytes of the client, or leave the column out."
        yield Finding(Level.WARN, "hazard", text, hint)


def _change_files(check: FeedCheck) -> Iterator[Finding]:
    hint = 'changes = "compare" reads the data files in place of the feed (docs/delta.md).'
    for fault in check.faults[:_MOST_SHOWN]:
        yield Finding(Level.WARN, "change files", _fault(fault), hint if fault is check.faults[0] else "")
    looked = versions(check.versions.start, check.versions.stop - 1)
    if more := len(check.faults) - _MOST_SHOWN:
        text = f"they differ from the data files in {more} more of {looked}: --json lists all"
        yield from [Finding(Level.WARN, "change files", text)] if more > 0 else ()
    for version, error in list(check.unread.items())[:1]:
        others = f", and {len(check.unread) - 1} more of {looked}," if len(check.unread) > 1 else ""
        text = f"version {version}{others} cannot be compared with the data files: {error}"
        gone = "What is gone cannot be checked: check sooner than VACUUM and log cleanup remove it (retention)."
        yield Finding(Level.NOTE, "change files", text, gone if isinstance(error, FileVacuumed | VersionGone) else "")
    if not check.versions:
        text = "the log has no commit any more whose change files could be checked"
        yield Finding(Level.NOTE, "change files", text, "Check again after the next commits.")
    elif not (check.faults or check.compared or check.unread):
        yield Finding(Level.OK, "change files", f"there are none in {looked}: nothing to check")
    elif check.compared and not check.faults:
        text = f"of {looked}, {check.compared} could be compared, without a difference from the data files"
        yield Finding(Level.OK, "change files", text)


def _fault(fault: FeedFault) -> str:
    named = {FEED: "only in the feed", FILES: "only in the data files"}
    parts = []
    for where, words in named.items():
        counts = [count(number, kind) for (side, kind), number in sorted(fault.counts.items()) if side == where]
        parts += [f"{words}: {', '.join(counts)}"] if counts else []
    values = (f"{name} = {json.dumps(value, ensure_ascii=False, default=str)}" for name, value in fault.values.items())
    row = ", ".join(values) or "a row that --values shows"
    where, kind = fault.first
    operation = "" if fault.operation is None else f" ({fault.operation})"
    return f"version {fault.version}{operation}: {'; '.join(parts)}; the first: {kind} of {row}, {named[where]}"


def _columns(names: list[str] | tuple[str, ...]) -> str:
    return f"column {names[0]} is" if len(names) == 1 else f"columns {', '.join(names)} are"


def _history(examination: Examination, profile: TableProfile) -> Iterator[Finding]:
    for lost in examination.lost[-_MOST_SHOWN:]:
        hint = f"A pipeline that begins after version {lost.last} is not concerned."
        text = f"the changes of {versions(lost.version, lost.last)} are lost: {lost.error}"
        yield Finding(Level.WARN, "history", text, hint)
    for fault in examination.contradictions[-_MOST_SHOWN:]:
        text = f"version {fault.version} contradicts the table: {fault.reason}: {fault.path}"
        hint = 'Its changes are delivered as the log says. start = "snapshot" begins with the table as it is.'
        yield Finding(Level.WARN, "history", text, hint)
    for gone in {(file.version, file.path): file for file in examination.gone}.values():
        level = Level.WARN if gone.version == profile.version else Level.NOTE
        text = f"a file that the changes of version {gone.version} need is gone, as after VACUUM: {gone.path}"
        yield Finding(level, "history", text, 'A pipeline must start later, or with start = "snapshot".')
    has_fault = examination.lost or examination.contradictions or examination.gone
    if examination.commits and examination.stop is None and not has_fault:
        text = "none of the commits looked at is missing, and none is known to contradict the table"
        measured = examination.measured
        looks = (examination.sample.version, None if measured is None else measured.version)
        opened = sorted({version for version in looks if version is not None})
        if opened:
            named = f"version{'s' * (len(opened) > 1)} {' and '.join(map(str, opened))}"
            text += f"; of data files, only some of {named} were opened"
        else:
            text += "; no data file was opened"
        yield Finding(Level.OK, "history", text)
