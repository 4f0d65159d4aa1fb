"""App ids: the names under which sinks keep the progress of streams.

`<pipeline>/<table id>`, of a shard `<pipeline>/<shard>-of-<shards>/<table id>`, of a backfill
`<pipeline>/~backfill-<id>/<table id>`. No pipeline and no shard has `~` in its name.

Under `<pipeline>/#stream`, whose version is a digest of an app id, a sink keeps which stream of a pipeline has
committed last: a pipeline whose source table was replaced has another app id, and no commit about the former one may
follow.
"""

import re
from hashlib import sha256
from typing import Final

__all__ = [
    "LAYOUT",
    "LAYOUT_SHARDS",
    "app_id_of",
    "backfill_name",
    "backfill_of",
    "backfilled_app_id",
    "is_layout",
    "main_app_id",
    "pipeline_of",
    "shard_name",
    "shard_of",
    "shards_in",
    "stream_name",
    "stream_number",
    "table_of",
]

LAYOUT: Final = "/shards/layout"
LAYOUT_SHARDS: Final = 2**16  # more than a pipeline may have; the rest of a layout's version is the division's rules
_BACKFILL: Final = re.compile(r"(.*)/~backfill-([^/]*)(/[^/]*)")


def app_id_of(pipeline: str, table_id: str) -> str:
    """Return the app id under which a sink keeps the progress of `pipeline` in the table `table_id`."""
    return f"{pipeline}/{table_id}"


def pipeline_of(app_id: str) -> str:
    """Return the pipeline of an app_id."""
    return app_id.rpartition("/")[0]


def table_of(app_id: str) -> str:
    """Return the table id of an app_id."""
    return app_id.rpartition("/")[2]


def shard_name(pipeline: str, shard: int, shards: int) -> str:
    """Return the name of a shard of `pipeline` as a pipeline of its own; `shard` is from 0 to below `shards`."""
    return f"{pipeline}/{shard}-of-{shards}"


def backfill_name(pipeline: str, backfill: str) -> str:
    """Return the name of the stream of a backfill of `pipeline`, given by its id, as a pipeline of its own."""
    return f"{pipeline}/~backfill-{backfill}"


def backfilled_app_id(app_id: str) -> str | None:
    """Return the app_id of the pipeline whose backfill has `app_id`. None: it is not that of a backfill."""
    match = _BACKFILL.fullmatch(app_id)
    return None if match is None else match[1] + match[3]


def backfill_of(app_id: str) -> str | None:
    """Return the id of the backfill that has `app_id`. None: it is not that of a backfill."""
    match = _BACKFILL.fullmatch(app_id)
    return None if match is None else match[2]


def main_app_id(app_id: str) -> str:
    """Return the app_id of the stream of changes that one belongs to: for a backfill its pipeline's, or else itself."""
    return backfilled_app_id(app_id) or app_id


def stream_name(app_id: str) -> str:
    """Return the name under which a sink keeps which stream of a pipeline has committed last."""
    return f"{pipeline_of(main_app_id(app_id))}/#stream"


def stream_number(app_id: str) -> int:
    """Return the version under `stream_name` that stands for a stream; for a backfill, that of its pipeline."""
    return int.from_bytes(sha256(main_app_id(app_id).encode()).digest()[:8], "big") >> 1


def shard_of(app_id: str) -> tuple[int, int] | None:
    """Return the shard of an app_id and the number of shards. None: its pipeline is undivided."""
    match = re.fullmatch(r".*/(\d+)-of-(\d+)/[^/]*", app_id)
    return None if match is None else (int(match[1]), int(match[2]))


def is_layout(app_id: str) -> bool:
    """Return whether the app_id keeps a pipeline's division into shards (`LAYOUT`) instead of versions of a table."""
    return app_id.endswith(LAYOUT)


def shards_in(version: int) -> int:
    """Return the number of shards that the version of a layout stands for; 0: the pipeline is undivided."""
    return version % LAYOUT_SHARDS
