"""A server of SQS and of Glue on a loopback port: moto's, in a process of its own."""

import json
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import botocore.session

from tests.support.servers.ports import free_ports
from tests.support.servers.server_process import ServerProcess

__all__ = ["Queue", "event_bridge_message", "s3_message", "serving_sqs", "sns_message"]


@dataclass(frozen=True)
class Queue:
    """A queue of its own."""

    url: str
    client: Any

    def send(self, *messages: str) -> None:
        """Put messages into the queue."""
        for message in messages:
            self.client.send_message(QueueUrl=self.url, MessageBody=message)

    def size(self) -> int:
        """Return the number of messages that are in the queue, received or not."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found: Mapping[str, str] = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)[
            "Attributes"
        ]
        return sum(int(value) for value in found.values())


@dataclass(frozen=True)
class QueueServer:
    """A running server."""

    endpoint: str

    @cached_property
    def client(self) -> Any:
        """A client without anything of ours."""
        login = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
        session = botocore.session.Session()
        return session.create_client("sqs", region_name="us-east-1", endpoint_url=self.endpoint, **login)

    def new_queue(self) -> Queue:
        """Create a queue."""
        return Queue(self.client.create_queue(QueueName=uuid.uuid4().hex)["QueueUrl"], self.client)


@contextmanager
def serving_sqs(directory: Path) -> Iterator[QueueServer]:
    """Run the server until the block is left. Raises `ServerDownError`."""
    (port,) = free_ports(1)
    program = Path(sys.executable).with_name("moto_server")
    process = ServerProcess([str(program), "-H", "127.0.0.1", "-p", str(port)], directory)

    def answers() -> bool:
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/moto-api/data.json")
            connection.getresponse().read()
        finally:
            connection.close()
        return True

    try:
        process.await_(answers, "the SQS server does not answer")
        server = QueueServer(f"http://127.0.0.1:{port}")
        yield server
        server.client.close()
    finally:
        process.close()


def s3_message(bucket: str, *keys: str) -> str:
    """Write a notification as S3 sends it to a queue."""
    objects = [{"key": quote_plus(key, safe="/"), "size": 1, "sequencer": "0"} for key in keys]
    records = [
        {
            "eventVersion": "2.1",
            "eventSource": "aws:s3",
            "eventName": "ObjectCreated:Put",
            "s3": {
                "s3SchemaVersion": "1.0",
                "bucket": {"name": bucket, "arn": f"arn:aws:s3:::{bucket}"},
                "object": each,
            },
        }
        for each in objects
    ]
    return json.dumps({"Records": records})


def event_bridge_message(bucket: str, key: str) -> str:
    """Write a notification as a rule of EventBridge sends it to a queue."""
    detail = {"version": "0", "bucket": {"name": bucket}, "object": {"key": key, "size": 1}, "reason": "PutObject"}
    return json.dumps({"version": "0", "detail-type": "Object Created", "source": "aws.s3", "detail": detail})


def sns_message(message: str) -> str:
    """Wrap a notification as SNS does without raw message delivery."""
    return json.dumps({"Type": "Notification", "MessageId": "1", "TopicArn": "arn:aws:sns:x", "Message": message})
