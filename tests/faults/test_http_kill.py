"""SIGKILL of the real daemon while it sends requests: no event is missing, and one that came again has the same id."""

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.daemon.process import Daemon
from tests.support.histories.long_history import Change, LongHistory
from tests.support.seeds import repeats
from tests.support.servers.endpoint import Answer, Endpoint, serving
from tests.support.waiting import until

KILLS: Final = repeats(3)
COMMITS: Final = 60
SLOW_S: Final = 0.005  # a request is under way when the daemon is killed


def rows_of(event: dict[str, Any]) -> list[Change]:
    """Return the rows in an event of either format."""
    if "_event_id" in event:
        return [(event["_commit_version"], event["_change_type"], event["id"])]
    before, after = (event["data"][image] for image in ("before", "after"))
    *_, version, _task, _row, operation = event["id"].split(";")
    kinds = ("update_preimage", "update_postimage") if operation == "u" else ("delete", "insert")
    found = zip(kinds, (before, after), strict=True)
    return [(int(version), kind, image["id"]) for kind, image in found if image is not None]


def delivered(endpoint: Endpoint) -> set[Change]:
    """Return the rows that the endpoint has taken."""
    return {row for event in endpoint.events() for row in rows_of(event)}


def wait_for_requests(endpoint: Endpoint, number: int) -> None:
    """Return when there were so many requests."""
    until(lambda: len(endpoint.posts) >= number, lambda: len(endpoint.posts))


def check(history: LongHistory, endpoint: Endpoint, form: str) -> None:
    """Check that the endpoint has every row, in order, and knows those that came again by their ids."""
    events = endpoint.events()
    rows = [row for event in events for row in rows_of(event)]
    assert set(rows) == set(history.changes)
    versions = [version for version, _, _ in dict.fromkeys(rows)]
    assert versions == sorted(versions)
    if form == "json":
        by_id = dict(zip(endpoint.ids(), map(rows_of, events), strict=True))
        assert Counter(row for own in by_id.values() for row in own) == history.changes
        assert all(by_id[each] == rows_of(event) for each, event in zip(endpoint.ids(), events, strict=True))
    print(f"{len(events)} events in {len(endpoint.posts)} requests, {len(set(endpoint.ids()))} different ones")


@pytest.mark.parametrize("form", ["json", "cloudevents"])
def test_killed_again_and_again(tmp_path: Path, started: list[Daemon], form: str) -> None:
    history, moments = LongHistory(tmp_path / "source", seed=7, length=COMMITS), random.Random(form)
    with serving() as endpoint:
        endpoint.answer = lambda _: Answer(before=lambda: time.sleep(SLOW_S))
        config = tmp_path / "tailer.toml"
        config.write_text(
            f'state_table = "state"\n[pipelines.orders]\ntable = "{history.path}"\npoll_interval_s = 0.05\n'
            f'[pipelines.orders.sink]\nkind = "http"\nurl = "{endpoint.url}"\nformat = "{form}"\nbatch_rows = 50\n'
        )
        for number in range(KILLS):
            history.publish(COMMITS // (KILLS + 1))
            started.append(Daemon(config))
            started[-1].wait_until_running()
            wait_for_requests(endpoint, len(endpoint.posts) + 1)
            time.sleep(moments.uniform(0, 0.2 * (number % 3)))
            started[-1].kill()
        history.publish(COMMITS)
        started.append(Daemon(config))
        until(lambda: delivered(endpoint) == set(history.changes), lambda: len(endpoint.posts))
        assert started[-1].terminate() == 0, started[-1].said
        check(history, endpoint, form)
