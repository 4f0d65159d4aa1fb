"""The arguments of `tailer.spark.changes` and `follow` as options of the data source."""

from tailer.spark.native.changes import Option, source_options


def test_values_become_text() -> None:
    options: dict[str, Option] = {"columns": ["id", "a`b"], "where": "id > 1", "rowIds": True, "maxFilesPerTrigger": 3}
    assert source_options("/data/orders", 2, "latest", options) == {
        "path": "/data/orders",
        "startingVersion": "2",
        "columns": "`id`,`a``b`",
        "where": "id > 1",
        "rowIds": "true",
        "maxFilesPerTrigger": "3",
    }


def test_none_is_as_if_the_option_was_not_given() -> None:
    options = {"where": None, "columns": None, "key": None, "snapshot": None}
    assert source_options("/data/orders", "earliest", "latest", options) == {
        "path": "/data/orders",
        "startingVersion": "earliest",
    }
