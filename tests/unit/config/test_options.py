"""Names with dots in tables of options."""

import tomllib

from tailer_sinks import flattened


def test_names_with_and_without_quotes_are_the_same() -> None:
    text = '"linger.ms" = 5\nclient.id = "a"\nclient.dns.lookup = "use_all_dns_ips"\nacks = "all"'
    assert dict(flattened(tomllib.loads(text))) == {
        "linger.ms": 5,
        "client.id": "a",
        "client.dns.lookup": "use_all_dns_ips",
        "acks": "all",
    }


def test_a_name_given_in_both_ways_is_yielded_twice() -> None:
    table = tomllib.loads('"client.id" = "a"\nclient.id = "b"')
    assert list(flattened(table)) == [("client.id", "a"), ("client.id", "b")]


def test_an_empty_table_has_no_names() -> None:
    assert list(flattened({"client": {}})) == []
