"""Sinks: the destinations of changes, and the contract of a new one.

    stdout     lines or a table for people; at least once
    files      JSON Lines or Parquet, one directory per stream; exactly once
    delta      a Delta table, as a log of the changes or a mirror of the source; exactly once
    kafka      messages of a Kafka topic; exactly once for read_committed consumers
    http       requests to a web service; at least once
    sql        a table of PostgreSQL, SQLite or DuckDB, as a mirror of the source or a log of its changes; exactly once
    memory     lists in this process, for tests and embedding, not for configurations; exactly once
    encoding   text or messages from Arrow rows, for sinks without types; rows of several schemas as one, for the others
    testing    the contract below as a test suite, and a sink with faults for testing the code before it

The docstrings of the ports, in `tailer.sink`, are the contract. This page gives the reasons, and
`tailer_sinks.testing.SinkTests` checks it.

A sink keeps change rows, each with its change type, or makes a copy of the table from them (`sql`, and mirrors in
`delta`).

Writing a sink
--------------

A class that inherits `tailer.sink.Sink`, and a classmethod `configure(name, options)`, named by an entry point of the
group `tailer.sinks`; the entry's name is the `kind` users write. Import nothing of ours but the ports (`tailer.sink`,
`tailer.events`, `tailer.plan`, `tailer.errors`) and, if you like, `tailer.stores.folders`, `tailer_sinks`,
`tailer_sinks.encoding` and `tailer_sinks.encoding.typed`. `name` is the pipeline's. The option `path` and options that
end in `_file` or `_folder` arrive as absolute paths; in `path`, `table` and `topic`, a template of pipelines fills in
the name of the table. `read_options` checks the others, and names `<name>.<option>` in errors; `flattened` joins the
names of tables in tables. Import your client library at the top of your module: it is loaded only when a user
configures your kind. If a module `options` beside yours has a function `read(name, options)` that needs no client,
`tailer check` names the faults of options also where the client is missing.

1. **Rows and progress become visible together, or not at all.** `commit(progress)` is the moment. A reader of the
   destination, at any time and after any crash, sees either both or neither. Put progress where the rows are: in the
   same transaction, commit, file name.
2. **The destination knows the progress; you do not.** `progress` reads it each time. Keep nothing across an error.
3. **Leaving the block without `commit` leaves nothing**, after an exception, a cancellation or a plain return. The
   remains of a killed process must be invisible, and be cleaned up later.
4. **One writer per app_id.** A transaction builds on what this instance last saw: what `progress` returned, or what it
   committed itself. If another instance has committed since, raise `SinkFenced`, in `begin`, `write` or `commit`.
   `begin` never waits for another writer: it raises, or lets `commit` find out. If the latest instance wins, `begin`
   takes the stream over. If the stream has moved on since this instance last read progress, `begin` then raises
   `SinkUnavailable`, and the pipeline reads progress again. The former writer gets `SinkFenced`.
5. **The outcome of a commit is known or named.** Raise `CommitUnknown` if the answer was lost: the pipeline then asks
   for `progress` and continues from there. Raise `SinkRejected` or `SinkUnavailable` from `commit` only if nothing was
   committed.
6. **Nothing is altered.** A value arrives as it is, or `SinkRejected` names the column. Never cut or round, and cast
   only to a type that has every value of the first (`tailer_sinks.encoding.typed.fits`). Order is kept.
7. **Memory is bounded by the batches in flight.** A batch may be large; cut it if your form of it is larger. A
   transaction may hold any number of batches: do not collect them.
8. **Never block the event loop.** Blocking clients run in worker threads (`anyio.to_thread`). A commit that has begun
   is not abandoned when the task is cancelled: finish it, or know that it did not take place.
9. **Columns change while you write.** `begin` gives the schema of the first rows, `announce(SchemaChange)` that of the
   rows after it, and both may be in one transaction: a version that drops a column deletes rows that have it and
   inserts rows that lack it. Make room for the new columns in the transaction itself; if that would lock readers out,
   as `ALTER TABLE` of a database may, stage the rows and do it in `commit`. Columns are known by name: a renamed column
   is another one, and a dropped column is null from then on. A copy of the table follows columns by
   `SchemaChange.origins` instead. If there is no room, raise `SinkRejected` in `announce`, before any of those rows,
   naming the column and the next step. Rows that were not announced are refused.
10. **A gap is reported in its place.** `announce(Gap)` reports lost changes, and whether all rows of the table
    follow. Readers of the destination must find it: as an entry between the rows of lines or messages
    (`tailer_sinks.encoding.event_values` gives the words), otherwise as a row with the change type `gap`
    (`tailer_sinks.encoding.typed.gap_row`). It becomes visible with the transaction, or not at all. Report a
    `SchemaChange` likewise, unless your types show it.

`splits_versions` is True if you can store a whole `Position`. Otherwise you only get positions that close a version
and, if `splits_snapshots` is True, positions inside a snapshot (`Position.in_snapshot`). Support the latter if you can:
a snapshot is as large as its table. If it cannot be split it is one transaction, which starts over after every failure.
A position inside a snapshot is stored as atomically as a complete version, and fenced likewise. The next position, the
commit that closes the version, or a `reset` replaces it.

`demands` lists your demands on the pipeline: `Demands()` is none. A copy of the table needs the `whole` table, and may
take its `primary_key`. For a destination that identifies rows by a `key`, both images of an update come together, and a
single image belongs to a row whose key was added or removed. If your transactions must be small, or must not stay
open, `demands` gives the limits, and how long to wait (`max_quiet_s`). Where your options leave no place for a `Gap`,
`gap_remedy` says what to configure: commands that would need one are refused with it.

`distributes` is True if several processes may write at once, each with a sink of the same options and with app_ids that
no other process has: no operation of one may fence, hide or wait for another's app_id. Spark's executors then write a
pipeline's shards.

Methods with a default need not be overridden. `beat` is called whenever there is nothing to deliver, and
`check_first_start` before a pipeline begins without progress in the sink. `refusals` tells `tailer check --connect`
with which errors `begin` and the first rows would be refused: get both from the same functions, and change nothing. If
reading progress may change something, leave that out after `only_look`. `write_all` of a transaction, or of an
`AtLeastOnceSink`, is given the rows of many small files in one step; if `writes_together` is True, also those of
several small versions.

A sink whose option `path` may be in an object store sets `writes_to_stores`: before anything else `use_stores` gives it
the stores of the configuration, and it opens its location through them. Without that, only paths of this machine
arrive.

`reset` sets progress without rows, durably, in either direction. Refuse (`SinkRejected`) a reset that would deliver
twice or leave an unreported gap. Its position closes a version, or is `Position.opening(n)`: for a sink that
`distributes`, app ids that end in `/shards/layout` store a number of shards in that form.

`has_delivered` returns whether a pipeline has progress for any table, from any instance. It becomes true with the first
commit or `reset`, and stays true for ever. It distinguishes a first start from a table that has replaced another one,
so it must not be limited to the tables this instance was asked about.

A destination that cannot do 1 and 3 (a terminal, an HTTP endpoint) is an `AtLeastOnceSink`: `write`, `announce`,
`flush`, and `forget` if it holds rows back; no progress. `tailer.progress.recorded.Recorded` makes it usable, and its
type tells users what they get.

Errors: translate your client's exceptions in the module that imports it. Name the sink by `name`, give the failure in
`reason`; no secrets in texts. Raise `SinkUnavailable` if a retry may help, `SinkRejected` with a `remedy` if a person
must act.
"""

from tailer.config.options import flattened, read_options

__all__ = ["flattened", "read_options"]
