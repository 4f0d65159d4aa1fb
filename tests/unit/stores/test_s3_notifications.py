"""Bucket and key in the messages of a queue, whoever sent them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.stores.s3.notifications import named_objects
from tests.support.cases import cases
from tests.support.s3.queues import event_bridge_message, s3_message, sns_message

KEY = "lake/großer Tisch+a=1%20/_delta_log/00000000000000000007.json"


@pytest.mark.parametrize("send", [s3_message, event_bridge_message])
def test_both_senders_name_the_object(send: type) -> None:
    message: str = send("b", KEY)
    assert list(named_objects(message)) == [("b", KEY)]
    assert list(named_objects(sns_message(message))) == [("b", KEY)]


def test_a_message_may_name_many_objects() -> None:
    assert list(named_objects(s3_message("b", "x", "y"))) == [("b", "x"), ("b", "y")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["Records", "s3", "bucket", "name", "object", "key", "detail", "Message"]), inner
        )
    ),
)


@given(JSON)
def test_foreign_messages_do_no_harm(message: object) -> None:
    for bucket, key in [*named_objects(json.dumps(message)), *named_objects(sns_message(json.dumps(message)))]:
        assert isinstance(bucket, str)
        assert isinstance(key, str)


@cases(
    "text",
    ["", "{", "hello", "[" * 100_000, '{"Event": "s3:TestEvent", "Bucket": "b"}', '{"Message": "plain text"}', "NaN"],
)
def test_garbage_names_nothing(text: str) -> None:
    assert list(named_objects(text)) == []
