"""Check the folders of a configuration: nothing is written into a table or into another target.

A VACUUM of an outer folder would delete the inner one, and two writers of one folder would mix their rows. Local
folders are compared after links are followed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final, Self

from tailer.config.file import Key
from tailer.config.pipelines import PipelineSettings, Settings
from tailer.errors import ConfigError
from tailer.formats.delta.folders import holds_table, table_around
from tailer.formats.registry import folder_of_log
from tailer.stores.folders import Folder, foreign_entry
from tailer.stores.location import is_local, lies_in

__all__ = ["conflict", "folder_faults"]

Fault = tuple[Key, str, str]  # key, reason, next step

_COLUMN: Final = re.compile(r"\{([^{}]+)\}")  # in the name of a topic
_OWN_FOLDER: Final = "Give it a folder of its own."


def folder_faults(settings: Settings) -> Iterator[Fault]:
    """Yield the faults of all folders that are read or written; of a template, those of a table that stands for all."""
    for template in settings.templates:
        # It would find no table. A pipeline of one log stops alone, when it runs.
        if (above := folder_of_log(template.pipeline.table)) is not None:
            key = ("pipelines", template.pipeline.name, "table")
            yield key, "is the folder of a table's log", f"Give the folder around it, {above}."
    samples = (template.sample for template in settings.templates)
    yield from _overlaps(replace(settings, pipelines=(*settings.pipelines, *samples)))
    yield from _state_folder_faults(settings)
    yield from _found_targets(settings)


def conflict(pipeline: PipelineSettings, others: Iterable[PipelineSettings]) -> ConfigError | None:
    """Return why a pipeline of a table that was found cannot run beside `others`; None if it can.

    Targets are compared by their text: `folder_faults` has followed the links of their templates.
    """
    remedy = "Rename the table, or give the template another path or topic."
    if pipeline.target is not None and _are_nested(pipeline.target, pipeline.table):
        # Of a table that is named, the location was not known before.
        reason = f"{pipeline.target} and its own table {pipeline.table} are nested in each other"
        return ConfigError(pipeline.name, reason, "Give the sink another path.")
    for other in others:
        if (target := _shared(pipeline, other)) is not None:
            return ConfigError(pipeline.name, f"its target {target} is that of {other.name} too", remedy)
        for writer, reader in ((pipeline, other), (other, pipeline)):
            if writer.target not in (None, reader.table) and _are_nested(str(writer.target), reader.table):
                reason = f"{writer.target} and the table {reader.table} are nested in each other"
                return ConfigError(pipeline.name, reason, remedy)
    return None


def _shared(pipeline: PipelineSettings, other: PipelineSettings) -> str | None:
    """Return the target that both pipelines would write, if any."""
    if pipeline.target is not None and other.target is not None:
        return pipeline.target if _are_nested(pipeline.target, other.target) else None
    ours, theirs = pipeline.sink_options, other.sink_options
    if pipeline.sink_kind != other.sink_kind or ours.get("bootstrap_servers") != theirs.get("bootstrap_servers"):
        return None
    return _Topics.of(ours).shared_with(_Topics.of(theirs))


@dataclass(frozen=True)
class _Topics:
    """The topics that a sink may write rows to: some by name, and those that fit a pattern.

    `named`: the text before and after a column in the option `topic`, None if it names no column. `pattern`: of whole
    names; None if all are listed.
    """

    listed: frozenset[str]
    named: tuple[str, str] | None = None
    pattern: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        topic, topics, other = (options.get(option) for option in ("topic", "topics", "other_topic"))
        if not isinstance(topic, str):
            return cls(frozenset())
        before, *rest = _COLUMN.split(topic)
        if not rest:
            return cls(frozenset([topic]))
        names = [] if isinstance(topics, str) else topics or []
        listed = frozenset(name for name in names if isinstance(name, str))
        pattern = topics if isinstance(topics, str) else None
        return cls(listed | ({other} if isinstance(other, str) else set()), (before, rest[-1]), pattern)

    def shared_with(self, other: Self) -> str | None:
        """Return a topic, or the text of a pattern, that both have; of two patterns, also if it is not certain."""
        both = sorted(self.listed & other.listed)
        both += [topic for topic in sorted(other.listed) if self._fits(topic)]
        both += [topic for topic in sorted(self.listed) if other._fits(topic)]
        if both or None in (self.pattern, other.pattern) or self.named is None or other.named is None:
            return next(iter(both), None)
        (before, after), (start, end) = self.named, other.named
        begins = before.startswith(start) or start.startswith(before)
        return self.pattern if begins and (after.endswith(end) or end.endswith(after)) else None

    def _fits(self, topic: str) -> bool:
        if self.pattern is None or self.named is None:
            return False
        before, after = self.named
        return topic.startswith(before) and topic.endswith(after) and bool(re.fullmatch(self.pattern, topic))


def _are_nested(location: str, other: str) -> bool:
    return lies_in(location, other) or lies_in(other, location)


def _found_targets(settings: Settings) -> Iterator[Fault]:
    """Refuse a template that would find what it writes, alone or through other templates, and the state table."""
    templates = settings.templates
    finds = {
        template.pipeline.name: [
            other.pipeline.name for other in templates if template.pattern.match(other.sample.target or "") is not None
        ]
        for template in templates
    }
    remedy = "Write to a folder that the pattern of tables does not fit."
    try:
        TopologicalSorter(finds).prepare()
    except CycleError as error:
        cycle = error.args[1]
        reason = f"would be found as a table, and followed again and again ({' to '.join(cycle)})"
        yield ("pipelines", cycle[0], "sink", "path"), reason, remedy
    for template in templates:
        if settings.state_table is not None and template.pattern.match(settings.state_table) is not None:
            name = f"pipelines.{template.pipeline.name}.table"
            yield ("state_table",), f"fits the pattern of {name}, and would be followed", "Give it another folder."


def _overlaps(settings: Settings) -> Iterator[Fault]:
    """Refuse a written folder, here or in a store, that is, contains or lies in another.

    One pipeline may follow the target of another, and several may follow one table.
    """
    read = [(("pipelines", pipeline.name, "table"), pipeline.table) for pipeline in settings.pipelines]
    targets: list[tuple[Key, str | None]] = [(("state_table",), settings.state_table)]
    targets += [(("pipelines", pipeline.name, "sink", "path"), pipeline.target) for pipeline in settings.pipelines]
    written = [(key, location) for key, location in targets if location is not None]
    folders = {location: Folder.at(Path(location)) for _, location in (*read, *written) if is_local(location)}
    for index, (key, location) in enumerate(written):
        for other_key, other in [*read, *written[:index]]:
            if location in folders and other in folders:
                inside, around = folders[location].lies_in(folders[other]), folders[other].lies_in(folders[location])
            else:
                inside, around = lies_in(location, other), lies_in(other, location)
            chained = len(key) > 1 and other_key[-1] == "table" and key[1] != other_key[1]
            place, spelled = ".".join(other_key), "" if location == other else f" ({other})"
            if inside and around and not chained:
                yield key, f"{location} is {place}{spelled} too", _OWN_FOLDER
                break
            if inside != around:
                yield key, f"{location} and {place} ({other}) are nested in each other", _OWN_FOLDER
                break


def _state_folder_faults(settings: Settings) -> Iterator[Fault]:
    """Refuse to create a state table in a folder with other content."""
    if settings.state_table is None or not is_local(settings.state_table):
        return
    path, key = Path(settings.state_table), ("state_table",)
    if holds_table(path):
        return
    remedy = "Give it a folder of its own. The folder need not exist."
    try:
        entry = foreign_entry(path)
    except OSError as error:
        yield key, f"{path} cannot be used: {error.strerror}", remedy
        return
    if entry is not None:
        yield key, f"{path} holds {entry!r}, but no state table", remedy
    elif table := table_around(path):
        yield key, f"{path} lies inside the Delta table {table}, whose VACUUM would delete it", remedy
