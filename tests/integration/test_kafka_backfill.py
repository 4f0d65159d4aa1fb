"""A backfill into Kafka: in the topic of its pipeline, between two versions, by a transactional id of its own."""

import json
from pathlib import Path

from tailer.pipeline.backfill.command import BackfillCommand, BackfillPhase
from tailer.pipeline.status import PipelineStatus
from tailer.plan import Position
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.pipeline import Pipe
from tests.support.kafka.topics import create_topic, read_topic


def test_rows_come_between_two_versions_once(kafka: KafkaCluster, tmp_path: Path) -> None:
    pipe = Pipe(kafka.bootstrap_servers, tmp_path / "table")
    create_topic(pipe.servers, pipe.topic, 1)
    pipe.publish(2)
    pipe.deliver()
    pipe.publish()
    status = PipelineStatus(pipe.name)
    status.backfills.restore(BackfillCommand.make(), lambda _order: None)
    pipe.with_sink(lambda sink: pipe.deliver_by(sink, status=status))
    assert status.backfills.phase is BackfillPhase.DONE
    pipe.publish()
    pipe.deliver()
    values = [json.loads(record.value or b"") for record in read_topic(pipe.servers, pipe.topic)]
    assert [(each["v"], each["_commit_version"]) for each in values] == [(0, 0), (1, 1), (0, 1), (1, 1), (2, 2), (3, 3)]
    ends = [json.loads(record.value or b"") for record in read_topic(pipe.servers, f"{pipe.topic}.ends")]
    assert [(each["commit_version"], each["event_count"]) for each in ends] == [(0, 1), (1, 1), (1, 2), (2, 1), (3, 1)]
    entry = pipe.entry()
    assert entry is not None
    assert entry.position == Position.end(3)
