"""lake-tailer: every row-level change of a Delta Lake table, in order, exactly once.

The flow
========
::

    _delta_log                                                                    destination
        |                                                                              ^
    stores -> delta: LogSegment -> Commit -> Snapshot.advance -> ChangePlan[ChangeTask]    |
                 (async I/O at the edge, pure in the middle)         |                 |
                                                   read.execute(task): sync, pyarrow   |
                                      engine: threads | changelog around it | Spark    |
                                                                     |                 |
                                                               ChangeBatch -> SinkTransaction.commit(progress)
    wake-up -> pipeline <------------------------------------------------ Sink.progress(app_id)

Only progress flows back. A wake-up carries no data and only shortens the wait for the timer. Planning a version reads
no rows and always gives the same tasks. Every engine runs the same function, `execute`, so engines cannot disagree.

`storage`, `delta/`     where a log lies, and how it becomes plans; `table_log` is the port between them
`unity`                 a catalog that hands out the commits of a table
`execute`, `columns`, `calendars`   a task's file becomes change rows
`batch_sizes`, `int96`, `thrift`    how many rows at a time; timestamps of 96 bits; what Parquet's headers say
`events`, `plan`, `start`   the change row, what stands between rows, and a place in the stream
`engine`                running the tasks of a plan, in order, in bounded memory
`pairing`, `pairing_engine`, `net_changes`   rewritten files become changed rows, deletes and inserts become updates
`matches`, `comparing`, `preimages`   how: rows compared on disk, on another thread; images of an update put together
`matches_pool`          the few comparers of a process, for all its pipelines
`compared_columns`, `partitions`   in which columns rows are compared; which tasks have rows that may be equal
`selections`, `bitmaps`, `scratch`, `pairing_report`   rows chosen by deletion vectors, disk for all that, counts
`readings`              by which rules a version is read
`feed`, `ahead`, `pieces`   from one place to another in batches, over plans that are kept; work for executors
`engines`, `placement`  which engine a configuration asks for; where work is done
`spark/`                the data source `tailer`, `SparkEngine`, pipelines that executors write; all of PySpark is here
`shards`, `shard_*`     one pipeline by several streams: which rows, how many, and what an executor does with one
`folders`               which paths lead to one folder, and what lies there that is not ours
`spans`, `attempts`     versions for one commit of Spark's Delta writer; trying again
`filters`, `encodings`  a condition on change rows; rows as text, by the sinks' encoders
`sink`                  the ports of a destination; implementations are in the package `sinks`, found by entry point
`watch`, `pipeline`     the loop of one (table, sink): wait -> plan -> run -> commit
`delivery`, `lineage`   its side towards the sink: transactions, what rows look like, whose progress is ours
`arrivals`, `obstacle`  rows waited for with a deadline; what stopped a session, and how the next may get past it
`policy`, `schema_changes`, `vacuum_watch`   what to do where there is a choice, what to say, when to warn
`status`, `monitor`     the state of each pipeline as metrics, and answers to /metrics, /livez and /readyz
`row_ids`, `spelling`   a warning where row ids are null; a suggestion for a name that is not known
`config`, `daemon`, `cli/`   settings, several pipelines in one process, one file per verb

Invariants (cited by number in comments)
========================================
1. Rows and their progress become visible together or not at all.
2. Where we are is what the sink says; nothing else is remembered across an error or a restart.
3. Versions are delivered in order, once, without gaps; a gap stops the pipeline with a named error and a way on.
4. The same version always yields the same plan, and the same task the same rows in the same order.
5. Nothing is dropped or coerced silently: an unknown feature, type or row stops with a named error.
6. At most one instance writes for an `app_id`.
7. Memory is bounded by batches in flight, not by a file or a snapshot; `batch_sizes` says how large a batch can be. Of
   a commit, a plan holds the files that changed rows, with less than 1 KB each; the others pass through a chunk at a
   time. Comparing takes a bit for each row.
8. `fold(changes of a+1..b) applied to table at a == table at b`, for every table we accept, feed enabled or not.

Words
=====
A *change row* is a row of the table with `_change_type`, `_commit_version` and `_commit_timestamp`. A *plan* is what
one version changed; a *task* is one file's part of it. A *position* (version, task, row) is a place in the stream,
the same in every run. *Progress* is ours: what a sink has of one stream, under `app_id = <pipeline>/<table id>`.
*Checkpoint* only means Delta's checkpoint files. A *control event* stands between rows: a schema change, or a gap. A
*sink transaction* is a span of positions made visible at once. A *tombstone* is a message with a key and no value. Who
*takes over* a stream writes it from then on; the one before is *fenced*.
`after_*` is exclusive, other versions are inclusive; units come last in names (`timestamp_ms`, `size_bytes`).
=======
`docs/architecture.md` describes the folders, the layers, the invariants that comments cite by number, and the words.

To read changes from Python, call `tailer.changes`; to write a sink, read `sinks` and `sinks.testing`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailer.api import Changes, changes

__all__ = ["Changes", "__version__", "changes"]


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used: `tailer --help` and executors do without them."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("lake-tailer")
    if name in ("Changes", "changes"):
        from tailer import api  # noqa: PLC0415

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
