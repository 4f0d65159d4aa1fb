"""Questions to brokers while transactions' coordinators move."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.admin import TransactionState
from kafka.errors import BrokerResponseError, NotCoordinatorError

from tailer_sinks.kafka.clients import python_cluster
from tailer_sinks.kafka.clients.port import Connection
from tailer_sinks.kafka.clients.python_cluster import Cluster, Owner


class Admin:
    """An admin client that raises, or answers if there is nothing to raise."""

    def __init__(self, error: type[BrokerResponseError] | None) -> None:
        self.error = error
        self.closed = False

    def describe_transactions(self, ids: list[str]) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return {ids[0]: SimpleNamespace(producer_id=7, producer_epoch=1, state=TransactionState.ONGOING)}

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("errors", "found", "used"),
    [
        ([None], Owner((7, 1), True), 1),
        ([NotCoordinatorError, None], Owner((7, 1), True), 2),
        ([NotCoordinatorError, NotCoordinatorError], None, 2),
        ([BrokerResponseError], None, 1),
    ],
)
def test_a_coordinator_that_has_moved_is_looked_for_once_more(
    monkeypatch: pytest.MonkeyPatch, errors: list[type[BrokerResponseError] | None], found: Owner | None, used: int
) -> None:
    admins = [Admin(error) for error in errors]
    waiting: Iterator[Admin] = iter(admins)
    monkeypatch.setattr(python_cluster, "connected", lambda *_, **__: next(waiting))
    cluster = Cluster(Connection("sink", ["broker:9092"]))
    assert cluster.owner("orders/5f0c") == found
    assert len(list(waiting)) == len(admins) - used
    assert [admin.closed for admin in admins[: used - 1]] == [True] * (used - 1)
