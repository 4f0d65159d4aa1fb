"""Instances that take one stream over, in any order, and looks at its progress while transactions are open."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest

import tailer_sinks.kafka.link as link_module
from tailer.errors import SinkFenced, SinkRejected, SinkUnavailable
from tailer.plan import Position
from tailer.sink import LAYOUT
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.kafka.clients.port import Producer, TopicState
from tailer_sinks.kafka.clients.python_cluster import Owner
from tailer_sinks.kafka.first_start import check_first_start
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.options import read
from tailer_sinks.kafka.progress import Entry, ProgressTopic
from tailer_sinks.kafka.stream import Stream

APP = "orders/5f0c"
DELIVERED = Position.end(7)


@dataclass
class Brokers:
    """Brokers with a progress topic: each app_id has one producer that is not fenced.

    `log`: the topic before each record.
    """

    topic: ProgressTopic = field(default_factory=ProgressTopic)
    epochs: dict[str, int] = field(default_factory=dict)
    log: list[ProgressTopic] = field(default_factory=list)

    def record(self, app_id: str, entry: Entry, epoch: int) -> None:
        """Replace the progress of a stream. Raises `SinkFenced` if another producer has taken it over."""
        if self.epochs[app_id] != epoch:
            raise SinkFenced("sink", "another epoch")
        self.log.append(self.topic)
        entries, writers = {**self.topic.entries, app_id: entry}, {**self.topic.writers, app_id: (0, epoch)}
        self.topic = ProgressTopic(entries, self.topic.open, writers)


class OneProducer(Producer):
    """A producer of one transactional id, whose records are visible at once."""

    def __init__(self, brokers: Brokers, app_id: str) -> None:
        self.brokers = brokers
        self.epoch = brokers.epochs[app_id] = brokers.epochs.get(app_id, -1) + 1
        brokers.topic = ProgressTopic(brokers.topic.entries, brokers.topic.open - {app_id}, brokers.topic.writers)

    def begin(self) -> None: ...

    def send(self, topic: str, messages: Messages, partition: int | None = None) -> None: ...

    def start_flush(self) -> None: ...

    def flush(self) -> int:
        return len(self.brokers.log) - 1

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class FakeLink(Link):
    """A link to `brokers`. `meanwhile`: called once, when a stream was taken over and before it is claimed.

    `former`: the topic as a broker has it that does not know yet that another one leads.
    """

    def __init__(self, brokers: Brokers, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().__init__("sink", read("sink", {"bootstrap_servers": "broker:9092", "topic": "orders"}))
        self.brokers = brokers
        self.meanwhile = meanwhile
        self.reads = count()
        self.former: ProgressTopic | None = None

    def progress(self, before: int | None = None) -> ProgressTopic:
        """See `Link`."""
        next(self.reads)
        return (self.former or self.brokers.topic) if before is None else self.brokers.log[before]

    def owner(self, app_id: str) -> Owner | None:
        """See `Link`."""
        return Owner((0, self.brokers.epochs.get(app_id, -1)), app_id in self.brokers.topic.open)

    def producer(self, app_id: str) -> Producer:
        """See `Link`."""
        made, meanwhile = OneProducer(self.brokers, app_id), self.meanwhile
        self.meanwhile = lambda: None
        meanwhile()
        return made

    def record_progress(self, producer: Producer, app_id: str, entry: Entry) -> None:
        """See `Link`."""
        assert isinstance(producer, OneProducer)
        self.brokers.record(app_id, entry, producer.epoch)

    def check_topics(self, delivered: Position | None = None) -> TopicState:
        """See `Link`."""
        return TopicState(1, {})

    def had_messages(self, topic: str) -> bool:
        """See `Link`."""
        return False


def left_open(*app_ids: str, delivered: Position | None = None) -> Brokers:
    """Make brokers with open transactions in streams, after `delivered` in each of them."""
    entry = None if delivered is None else Entry(delivered, "killed", "orders", 1)
    return Brokers(ProgressTopic({} if entry is None else dict.fromkeys(app_ids, entry), frozenset(app_ids)))


@pytest.mark.parametrize("delivered", [None, Position.end(7)])
@pytest.mark.parametrize("app_id", [APP, "orders/other", "bills/5f0c"])
def test_no_look_waits_for_an_open_transaction_or_ends_it(app_id: str, delivered: Position | None) -> None:
    brokers = left_open(app_id, delivered=delivered)
    assert Stream(FakeLink(brokers), APP).look() == (delivered if app_id == APP else None)
    assert brokers.epochs == {}, "a live instance was fenced"


def test_what_is_committed_after_the_look_is_seen_by_the_takeover() -> None:
    brokers = left_open(APP, delivered=Position.end(7))
    stream = Stream(FakeLink(brokers), APP)
    assert stream.look() == Position.end(7)
    brokers.topic = ProgressTopic({APP: Entry(Position.end(8), "killed", "orders", 1)})
    with pytest.raises(SinkUnavailable, match="delivered more"):
        stream.take_over()
    assert stream.look() == Position.end(8)
    stream.take_over()


@pytest.mark.parametrize("known", [None, Position.end(7)])
def test_a_former_leader_does_not_decide_where_the_stream_goes_on(known: Position | None) -> None:
    """It answers each look with what was delivered up to the change of leaders."""
    brokers = Brokers()
    link = FakeLink(brokers)
    link.former = ProgressTopic({} if known is None else {APP: Entry(known, "killed", "orders", 1)})
    newest = Entry(Position.end(8), "killed", "orders", 1, key="json: id", topic_id="5f0c")
    brokers.topic = ProgressTopic({APP: newest})
    stream = Stream(link, APP)
    assert stream.look() == known
    for _ in range(2):
        with pytest.raises(SinkUnavailable, match="delivered more"):
            stream.take_over()
        assert brokers.topic.entries[APP].position == Position.end(8)
        assert brokers.topic.entries[APP].key == "json: id"
    link.former = None
    assert stream.look() == Position.end(8)
    stream.take_over()


def test_a_former_leader_does_not_take_a_stream_back() -> None:
    brokers = Brokers()
    link = FakeLink(brokers)
    stream = Stream(link, APP)
    stream.take_over()
    link.former = brokers.topic
    brokers.record(APP, entry := stream.entry(Position.end(3)), brokers.epochs[APP])
    stream.seen = entry
    with pytest.raises(SinkUnavailable, match="former progress"):
        stream.look()
    link.former = None
    assert stream.look() == Position.end(3)
    assert stream.is_taken_over


def test_a_claim_at_an_unknown_place_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(FakeLink(Brokers()), APP)
    with monkeypatch.context() as patch:
        patch.setattr(OneProducer, "flush", lambda _: None)
        with pytest.raises(SinkUnavailable, match="where its claim"):
            stream.take_over()
    stream.take_over()


def test_a_transaction_that_brokers_do_not_end_stops_the_takeover() -> None:
    brokers = left_open(APP, delivered=Position.end(7))

    def open_again() -> None:
        brokers.topic = left_open(APP, delivered=Position.end(7)).topic

    stream = Stream(FakeLink(brokers, open_again), APP)
    with pytest.raises(SinkUnavailable, match="not ended"):
        stream.take_over()
    stream.take_over()


def test_a_first_start_ends_the_open_transactions_of_its_own_pipeline_alone() -> None:
    brokers = left_open(APP, "orders/other", "bills/5f0c")
    check_first_start(FakeLink(brokers), "orders", ["5f0c"])
    assert brokers.topic.open == {"bills/5f0c"}


class Crowded(FakeLink):
    """A link to topics with messages, which `meanwhile` sends once the first look at progress is over."""

    def had_messages(self, topic: str) -> bool:
        """See `Link`."""
        self.meanwhile()
        return True


def test_messages_of_an_instance_that_begins_meanwhile_are_no_lost_progress() -> None:
    """It has claimed its stream, and its first transaction is open."""
    brokers = Brokers()
    with pytest.raises(SinkRejected, match="has messages"):
        check_first_start(Crowded(brokers), "orders", ["5f0c"])
    check_first_start(Crowded(brokers, Stream(FakeLink(brokers), APP).take_over), "orders", ["5f0c"])
    with pytest.raises(SinkRejected, match="has messages"):
        check_first_start(Crowded(brokers), "bills", ["5f0c"])


def test_of_two_idle_instances_the_later_one_goes_on() -> None:
    brokers = Brokers()
    links = [FakeLink(brokers) for _ in range(2)]
    first, second = (Stream(link, APP) for link in links)
    first.hold()
    first.hold()
    second.look()
    second.hold()
    for _ in range(2):  # also when asked again
        with pytest.raises(SinkFenced, match=links[1].instance):
            first.hold()
        with pytest.raises(SinkFenced):
            first.look()
        second.hold()


def test_an_idle_instance_reads_the_progress_topic_only_if_it_may_have_lost_the_stream() -> None:
    brokers = Brokers()
    link = FakeLink(brokers)
    stream = Stream(link, APP)
    stream.hold()
    reads = next(link.reads)
    for _ in range(5):
        stream.hold()
    assert next(link.reads) == reads + 1
    OneProducer(brokers, APP)  # takes it over and dies
    stream.hold()
    assert next(link.reads) == reads + 3


@pytest.mark.parametrize("claims", ["before", "after"])
@pytest.mark.parametrize("delivered", [None, Position.end(7)])
def test_of_two_that_start_together_the_later_one_goes_on(delivered: Position | None, claims: str) -> None:
    """The first one, fenced before it could claim the stream, does not come back.

    `claims`: whether the second one has claimed it before the first one notices.
    """
    brokers = left_open(APP, delivered=delivered)
    second = FakeLink(brokers)
    entries: list[Entry] = []

    def take_over() -> None:
        producer = second.producer(APP)
        entries.append(Entry(delivered, second.instance, "orders", 1))
        if claims == "before":
            second.record_progress(producer, APP, entries[0])

    first = Stream(FakeLink(brokers, take_over), APP)
    assert first.look() == delivered
    with pytest.raises(SinkFenced if claims == "before" else SinkUnavailable):
        first.hold()
    brokers.record(APP, entries[0], brokers.epochs[APP])
    for again in (first.look, first.look):
        with pytest.raises(SinkFenced, match=second.instance):
            again()


def test_one_that_was_fenced_by_the_late_request_of_a_killed_instance_comes_back() -> None:
    brokers = left_open(APP, delivered=Position.end(7))

    def late_request() -> None:
        OneProducer(brokers, APP)

    stream = Stream(FakeLink(brokers, late_request), APP)
    assert stream.look() == Position.end(7)
    with pytest.raises(SinkUnavailable):
        stream.hold()
    assert stream.look() == Position.end(7)
    stream.hold()


def opened(brokers: Brokers) -> None:
    """Open a transaction of the current owner, with progress in it."""
    brokers.topic = ProgressTopic(brokers.topic.entries, frozenset([APP]), brokers.topic.writers)


def test_a_broker_that_does_not_know_the_topic_yet_is_no_lost_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(FakeLink(Brokers()), APP)
    with monkeypatch.context() as patch:
        patch.setattr(FakeLink, "owner", lambda *_: None)
        stream.take_over()
        patch.setattr(FakeLink, "progress", lambda *_: None)
        with pytest.raises(SinkUnavailable, match="not known yet"):
            stream.hold()
    stream.hold()


def test_an_earlier_instance_notices_a_later_one_that_is_in_a_transaction() -> None:
    brokers = Brokers()
    links = [FakeLink(brokers) for _ in range(2)]
    first, second = (Stream(link, APP) for link in links)
    first.hold()
    second.take_over()
    opened(brokers)
    for attempt in (first.hold, first.look, first.hold):
        with pytest.raises(SinkFenced, match=links[1].instance):
            attempt()
    assert APP in brokers.topic.open, "the later one's transaction was ended"


def test_the_claim_of_the_instance_before_does_not_end_the_later_one() -> None:
    brokers = Brokers()
    before = FakeLink(brokers)
    Stream(before, APP).take_over()

    def claim_again() -> None:
        Stream(before, APP).take_over()

    stream = Stream(FakeLink(brokers, claim_again), APP)
    stream.look()
    with pytest.raises(SinkUnavailable):
        stream.hold()
    stream.look()
    stream.hold()
    assert brokers.topic.entries[APP].instance == stream.link.instance


def test_a_layout_is_not_read_while_its_last_commit_is_not_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = f"orders{LAYOUT}"
    monkeypatch.setattr(link_module, "_VISIBLE_S", 0.0)
    monkeypatch.setattr(FakeLink, "owner", lambda *_: None)
    with pytest.raises(SinkUnavailable, match="not ended"):
        Stream(FakeLink(left_open(layout)), layout).look()


class LateLink(FakeLink):
    """A link whose `meanwhile` is called before a stream is taken over, when all checks before that are done."""

    def producer(self, app_id: str) -> Producer:
        """See `Link`."""
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return super().producer(app_id)


def delivered_by(*app_ids: str, at: Position | None = DELIVERED) -> dict[str, Entry]:
    return dict.fromkeys(app_ids, Entry(at, "other", "orders", 1))


@pytest.mark.parametrize("former", [1, 2, 30])
def test_a_new_table_takes_over_the_last_one_alone(former: int) -> None:
    """Each of those before was taken over by the one that came after it."""
    tables = [f"orders/table-{number}" for number in range(former)]
    brokers = Brokers(ProgressTopic(delivered_by(*tables)))
    stream = Stream(FakeLink(brokers), APP)
    assert stream.look() is None
    stream.take_over()
    assert brokers.epochs == {tables[-1]: 0, APP: 0}


def test_all_that_may_still_commit_are_taken_over() -> None:
    """The last table has a stream of changes, and backfills; of the others a transaction may be open."""
    first, second, last = (f"orders/table-{number}" for number in range(3))
    done, under_way, begun = (f"orders/~backfill-{number}/table-2" for number in range(3))
    entries = {
        **delivered_by(first, "orders/~backfill-9/table-1", at=Position(7, 0, 1)),
        **delivered_by(second, last, done),
        **delivered_by(under_way, at=Position(7, 0, 1)),
        **delivered_by(begun, at=None),
        **delivered_by("bills/table-3", "orders/shards/layout"),
    }
    brokers = Brokers(ProgressTopic(entries, frozenset([second, "orders/table-9"])))
    Stream(FakeLink(brokers), APP).take_over()
    assert brokers.epochs.keys() == {second, "orders/table-9", last, under_way, begun, APP}


def test_an_instance_that_is_late_for_a_former_table_does_not_begin() -> None:
    """It is frozen after its last look, while another one takes its table over and goes on with a new one."""
    former, brokers = "orders/table-0", Brokers(ProgressTopic(delivered_by("orders/table-0")))
    late = LateLink(brokers, Stream(FakeLink(brokers), APP).take_over)
    frozen = Stream(late, former)
    assert frozen.look() == Position.end(7)
    with pytest.raises(SinkUnavailable, match="another source table"):
        frozen.take_over()
    assert not frozen.is_taken_over


def test_a_new_table_does_not_begin_beside_a_former_one() -> None:
    """Another instance takes the former one over after we have."""
    former, brokers = "orders/table-0", Brokers(ProgressTopic(delivered_by("orders/table-0")))
    rival = Stream(FakeLink(brokers), former)
    stream = Stream(FakeLink(brokers, rival.take_over), APP)
    assert stream.look() is None
    with pytest.raises(SinkUnavailable, match="another source table"):
        stream.take_over()
    assert stream.look() is None
    stream.take_over()
    assert brokers.epochs[former] == 2


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("further", ["orders/table-0", APP])
def test_a_new_id_does_not_begin_behind_another_instance(further: str, is_read: bool) -> None:
    """It has delivered more meanwhile, of the former id of a table or already of the new one."""
    former, brokers = "orders/table-0", Brokers(ProgressTopic(delivered_by("orders/table-0")))
    link = FakeLink(brokers)
    streams = [Stream(link, former), *([Stream(link, APP)] if is_read else [])]
    assert [each.look() for each in streams] == [DELIVERED, None][: len(streams)]
    stream = streams[1] if is_read else Stream(link, APP)
    brokers.topic = ProgressTopic({**brokers.topic.entries, **delivered_by(further, at=Position.end(8))})
    with pytest.raises(SinkUnavailable, match="more than this instance had seen"):
        stream.take_over()
    assert [each.look() for each in (*streams[:1], stream)][further == APP] == Position.end(8)
    stream.take_over()
    assert stream.is_taken_over
