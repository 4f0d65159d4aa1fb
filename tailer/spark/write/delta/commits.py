"""Commits into a Delta table beside its sink: by Spark, or by the sink itself if there are no rows."""

import anyio

from tailer.errors import CommitUnknown, EngineUnavailable, SinkFenced, SinkUnavailable, TailerError
from tailer.plan import ChangePlan, Position, output_schema
from tailer.sink import Appendable, Mergeable, Progress, Sink
from tailer.spark.job_group import run_stoppable
from tailer.spark.write.delta.append import RangeAppend

__all__ = ["commit_by_spark", "commit_without_rows"]


async def commit_by_spark(write: RangeAppend, sink: Appendable | Mergeable, position: Position) -> None:
    """Run `write`, which commits `position`. Raises unless that commit took place."""
    failure: TailerError | None = None
    try:
        await run_stoppable(write.run, write.stop)
    except (EngineUnavailable, SinkUnavailable, SinkFenced) as error:
        failure = error
    with anyio.CancelScope(shield=True):
        if not await sink.confirm(write.append, position):
            raise failure or SinkUnavailable(sink.name, "Spark has committed nothing and given no reason")


async def commit_without_rows(sink: Sink, app_id: str, plan: ChangePlan, deadline_s: float) -> None:
    """Commit that everything up to the version of `plan` is delivered. Raises `CommitUnknown` after `deadline_s`."""
    async with sink.begin(app_id, output_schema(plan.schema)) as transaction:
        try:
            with anyio.CancelScope(shield=True), anyio.fail_after(deadline_s):
                await transaction.commit(Progress(app_id, Position.end(plan.version)))
        except TimeoutError as error:
            raise CommitUnknown(sink.name, f"no answer within {deadline_s:g} s") from error
