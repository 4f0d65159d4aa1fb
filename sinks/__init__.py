"""Sinks: the places changes are delivered to, and what a new one must do.

    stdout     lines or a table for people; at least once
    files      JSON Lines or Parquet, one directory per stream; exactly once
    delta      a Delta table; exactly once
    kafka      messages of a Kafka topic; exactly once for read_committed consumers
    memory     lists in this process, for tests and embedding, not for configurations; exactly once
    encoding   from Arrow rows to text or messages, for those that are not typed
    typed      rows of several schemas as one, for those that are
    testing    the contract below as a test suite, and a sink with faults for testing what stands before it

The ports are in `tailer.sink`. This page says what they mean; `sinks.testing.SinkTests` says it in code, and passing
it is what "a sink" means.

Writing one ----------- A class with the methods of `tailer.sink.Sink` and a classmethod `configure(name, options)`,
named by an entry point of the group `tailer.sinks`; the entry's name is the `kind` users write. Import nothing of ours
but the ports (`tailer.sink`, `tailer.events`, `tailer.plan`, `tailer.errors`) and, if you like,
`tailer.stores.folders`, `sinks`, `sinks.encoding` and `sinks.encoding.typed`. Import your client library at the top of
your module: it is loaded only when somebody configures your kind.

1. **Rows and progress become visible together, or not at all.** `commit(progress)` is the moment. Whoever looks at
   the destination, at any time and after any crash, sees either both or neither. Put progress where the rows are: in
   the same transaction, commit, file name.
2. **The destination knows where we are; you do not.** `progress` asks it anew each time. Keep nothing across an error.
3. **Leaving the block without `commit` leaves nothing**, whether by an exception, by cancellation or just so. What a
   killed process leaves must be invisible, and be cleaned up later.
4. **One writer per app_id.** A transaction builds on what this instance last saw: what `progress` said, or what it
   committed itself. If another instance has committed since, raise `SinkFenced`, in `begin`, `write` or `commit`.
   Where it is the last one to come who writes, `begin` takes over instead: it raises `SinkUnavailable`, so that the
   pipeline asks for progress again, and the one that was fenced raises `SinkFenced`.
5. **The outcome of a commit is known or named.** Raise `CommitUnknown` if the answer was lost: the pipeline then asks
   for `progress` and goes on from there. Raise `SinkRejected` or `SinkUnavailable` from `commit` only if nothing of
   it took place.
6. **Nothing is altered.** A value arrives as it is, or `SinkRejected` names the column. Never cut or round, and cast
   only to a type that has every value of the first (`sinks.encoding.typed.fits`). Order is kept.
7. **Memory is bounded by the batches in flight.** A batch may be large; cut it if what you make of it is larger. A
   transaction may hold any number of batches: do not collect them.
8. **Never block the event loop.** Blocking clients run in worker threads (`anyio.to_thread`). A commit that has begun
   is not abandoned when the task is cancelled: finish it, or know that it did not take place.

9. **Columns change while you write.** `begin` says what the first rows look like, `announce(SchemaChange)` what those
   behind it do, and both may be in one transaction: a version that drops a column deletes rows that have it and inserts
   rows that have not. Make place for the new ones, in the transaction itself; columns are known by name, a renamed one
   is another one, and one that is gone is null from then on. Where there is no place, raise `SinkRejected` in
   `announce`, before any of those rows, naming the column and what to do. Rows that were not announced are refused.
10. **A gap is told, in its place.** `announce(Gap)` says that changes were lost, and whether all rows of the table
   follow. Whoever reads the destination must find it: as an entry between the rows if you have lines or messages
   (`sinks.encoding.event_values` gives the words), else as a row with the change type `gap`
   (`sinks.encoding.typed.gap_row`). It becomes visible with the transaction, or not at all. Tell a `SchemaChange`
   likewise, unless your types show it.

`splits_versions` is True if you can store a whole `Position`. Otherwise you are only given positions that close a
version, and, if `splits_snapshots` is True, places inside of a snapshot (`Position.in_snapshot`). Say that if you can:
a snapshot is as large as its table, and where it cannot be split it is one transaction, which begins anew after every
failure. A place is stored as atomically as a version that is closed, and fenced likewise; what comes next makes it
void: the next place, the commit that closes the version, or a `reset`.

`demands` says what you ask of the pipeline: `Demands()` is nothing. A destination that tells rows apart by a `key` has
both images of an update come together, and one without the other only of a row whose key came or went. One whose
transactions must be small, or must not stay open, says how small, and how long it waits (`max_quiet_s`).

`distributes` is True if several processes may write at once, each with a sink of the same options and with app_ids that
no other process has: nothing that one of them does may fence, hide or wait for another's app_id. Spark's executors then
write a pipeline's shards.

A sink that is a `tailer.sink.Heartbeat`, too, is called whenever there is nothing to deliver. One that is a
`tailer.sink.FirstStart`, too, is asked before a pipeline begins of which it has no progress.

`reset` sets progress without rows, durably, in either direction; refuse (`SinkRejected`) what would deliver twice or
leave a hole that cannot be told. It is always given a position that closes a version.

`has_delivered` says whether a pipeline has progress for any table, in whichever instance: from its first commit or
`reset` on, becoming true with that, and for ever. It tells a first start from a table that was put in the place of
another one, so it must not know only the tables this instance was asked about.

A destination that cannot do 1 and 3 (a terminal, an HTTP endpoint) is an `AtLeastOnceSink`: `write`, `announce` and
`flush`, no progress. `tailer.sink.Recorded` makes it usable, and its users read in its type what they get.

Errors: translate your client's exceptions in the module that imports it. Name the sink by `name`, say what failed in
`reason`; no secrets in texts. `SinkUnavailable` if trying again may help, `SinkRejected` with a `remedy` if a person
must act.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from tailer.errors import ConfigError, did_you_mean

__all__ = ["read_options"]

S = TypeVar("S", bound=msgspec.Struct)


def read_options(
    name: str, options: Mapping[str, Any], shape: type[S], *checks: Callable[[str, S], Iterable[ConfigError]]
) -> S:
    """The options of the sink called `name` as a `shape`: a msgspec struct, one field per option.

    `checks`: what else may be wrong with options of the right types.

    Raises `ConfigError` naming `<name>.<option>` for an option that is unknown, missing or of the wrong type, and for
    what a check finds; several of them as an `ExceptionGroup`. Values are not converted.
    """
    faults = dict(_misfits(name, options, shape))
    sound = {option: value for option, value in options.items() if option not in faults}
    found = list(faults.values())
    if all(field.name in sound for field in msgspec.structs.fields(shape) if field.required):
        given = shape(**sound)
        more = (fault for check in checks for fault in check(name, given))
        found += (fault for fault in more if not faults or _stands_alone(name, fault, sound, faults))
        if not found:
            return given
    raise found[0] if len(found) == 1 else ExceptionGroup(f"options of {name}", found)


def _misfits(name: str, options: Mapping[str, Any], shape: type[S]) -> Iterator[tuple[str, ConfigError]]:
    """Options that are unknown, missing or of the wrong type."""
    fields = {field.name: field for field in msgspec.structs.fields(shape)}
    instead = {unknown: _instead(unknown, list(fields)) for unknown in sorted(options.keys() - fields.keys())}
    for unknown, remedy in instead.items():
        yield unknown, ConfigError(f"{name}.{unknown}", "no such option", remedy)
    for field in fields.values():
        where = f"{name}.{field.name}"
        if field.name not in options:
            if field.required and f"Did you mean {field.name!r}?" not in instead.values():
                yield field.name, ConfigError(where, "is missing", f"The options are: {', '.join(fields)}.")
        elif (fault := _misfit(where, options[field.name], field.type)) is not None:
            yield field.name, fault


def _stands_alone(name: str, fault: ConfigError, sound: Mapping[str, Any], faults: Mapping[str, ConfigError]) -> bool:
    """Whether a check found it in options that are sound, and not because others count as not given."""
    text = f"{fault.reason} {fault.remedy}"
    related = any(re.search(rf"\b{re.escape(option)}\b", text) for option in faults)
    return fault.where.removeprefix(f"{name}.") in sound and not related


def _instead(unknown: str, known: Sequence[str]) -> str:
    """What to write in place of an option that there is not."""
    return did_you_mean(unknown, known) or f"The options are: {', '.join(known) or 'none'}."


def _misfit(where: str, value: Any, kind: Any) -> ConfigError | None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        choices = ", ".join(map(repr, get_args(kind)))
        remedies = {
            Literal: f"Give one of: {choices}.",
            list: f'Give a list, such as {where.rpartition(".")[2]} = ["a"].',
        }
        return ConfigError(where, str(error), remedies.get(get_origin(kind), ""))
    return None
