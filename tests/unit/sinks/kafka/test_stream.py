"""Looks at the progress of a stream while a transaction in the progress topic stays open."""

from unittest.mock import Mock

import pytest

from sinks.kafka.clients.port import Producer
from sinks.kafka.link import Link
from sinks.kafka.options import read
from sinks.kafka.progress import Entry
from sinks.kafka.stream import Stream
from tailer.errors import SinkUnavailable

APP = "orders/5f0c"


class LinkOfOpenTransactions(Link):
    """A link without a cluster: `hides` is whether a transaction is open, `fenced` the streams that were taken over."""

    def __init__(self) -> None:
        super().__init__("sink", read("sink", {"bootstrap_servers": "broker:9092", "topic": "orders"}))
        self.hides = False
        self.fenced: list[str] = []

    def entries(self, wait_s: float) -> tuple[dict[str, Entry], bool]:
        """Return no progress."""
        return {}, not self.hides

    def producer(self, app_id: str) -> Producer:
        """Note the stream whose previous writer is fenced."""
        self.fenced.append(app_id)
        return Mock(Producer)

    def look(self, stream: Stream, *, hides: bool) -> None:
        """Look at a stream while a transaction is open, or not."""
        self.hides = hides
        if hides:
            with pytest.raises(SinkUnavailable, match="a transaction is open"):
                stream.look()
        else:
            assert stream.look() is None


def test_the_second_look_in_a_row_ends_the_former_transaction() -> None:
    link = LinkOfOpenTransactions()
    stream = Stream(link, APP)
    link.look(stream, hides=True)
    assert link.fenced == []
    link.look(stream, hides=True)
    assert link.fenced == [APP]


def test_a_complete_look_between_two_others_begins_the_wait_again() -> None:
    link = LinkOfOpenTransactions()
    stream = Stream(link, APP)
    for hides in (True, False, True):
        link.look(stream, hides=hides)
    assert link.fenced == [], "a live instance about to commit was fenced"
    link.look(stream, hides=True)
    assert link.fenced == [APP]
