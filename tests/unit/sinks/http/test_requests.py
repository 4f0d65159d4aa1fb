"""Batches of events as requests: their sizes, ids, and the signature of Standard Webhooks."""

import hmac
from base64 import b64decode

import pytest

from tailer_sinks.http.events import Events, Request, cut, request_of, signature
from tailer_sinks.http.options import signing_keys


def events(*texts: bytes) -> Events:
    return Events("table", list(texts), [(5, 0, row) for row in range(len(texts))])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("most", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("most_bytes", [1, 8, 9, 12, 50, 1000])
def test_batches_are_as_large_as_they_may_be(most: int, most_bytes: int) -> None:
    given = events(*(b'"%b"' % (b"a" * (each % 5)) for each in range(23)))
    batches = list(cut(given, most, most_bytes))
    assert [text for batch in batches for text in batch.texts] == given.texts
    assert [place for batch in batches for place in batch.places] == given.places
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        body = request_of(batch).body
        assert len(batch) == 1 or (len(batch) <= most and len(body) <= most_bytes)
        if following is not None:
            assert len(batch) == most or len(body) + 1 + len(following.texts[0]) > most_bytes


def test_the_id_says_which_events_it_has() -> None:
    given = events(b'{"a":1}', b'{"a":2}')
    request = request_of(given)
    assert request == request_of(given)
    assert request.body == b'[{"a":1},{"a":2}]'
    assert request.id.startswith("5-0-0_5-0-1_")
    assert "." not in request.id
    # Rows that another condition lets through are another request.
    assert request_of(events(b'{"a":1}', b'{"a":3}')).id != request.id
    assert [each.places for each in given.halves()] == [[(5, 0, 0)], [(5, 0, 1)]]


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """A test vector of the specification's own libraries."""
    keys = signing_keys("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    request = Request("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}')
    assert signature(keys, request, 1614265330) == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_several_keys_sign_while_one_is_replaced() -> None:
    new, old = b"n" * 24, b"o" * 32
    request = request_of(events(b"{}"))
    found = signature((new, old), request, 7).split()
    signed = b"%b.7.%b" % (request.id.encode(), request.body)
    assert [b64decode(each.removeprefix("v1,")) for each in found] == [
        hmac.digest(key, signed, "sha256") for key in (new, old)
    ]
