"""Progress kept in a state table on S3, while answers to its commits are lost."""

import pytest

from tailer.plan import Position
from tailer.progress.state_table import CHECKPOINT_EVERY, StateTable
from tailer.sink import Progress
from tailer.stores.bucket.store import BucketStore
from tailer.stores.s3 import S3Options
from tailer.stores.s3.bucket import S3Bucket
from tests.support.s3.link import Fault, Request, S3Link

pytestmark = [pytest.mark.anyio, pytest.mark.stores]

APPS = ("one/t", "two/t")


async def test_each_commit_is_made_once_whatever_becomes_of_its_answer(link: S3Link) -> None:
    store = BucketStore(S3Bucket(link.server.new_bucket(), S3Options(endpoint=link.endpoint)), "state")
    commits = 0

    def every_third(request: Request) -> bool:
        nonlocal commits
        commits += request.is_conditional_put
        return request.is_conditional_put and commits % 3 == 0

    link.faults = [Fault(every_third, times=999, is_lost=True)]
    tables = {app: StateTable(store) for app in APPS}
    rounds = CHECKPOINT_EVERY // 2 + 2
    for version in range(rounds):
        for app, table in tables.items():
            await table.record(Progress(app, Position.end(version)))
    names = [meta.name for meta in await store.list("_delta_log") if meta.name.endswith(".json")]
    last = 2 * rounds  # the first commit creates the table
    assert names[-1] == f"_delta_log/{last:020}.json"
    for app in APPS:
        assert await StateTable(store).progress(app) == Progress(app, Position.end(rounds - 1))
    assert sum(request.is_conditional_put for request in link.requests) > last
