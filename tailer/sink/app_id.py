"""App ids: the names under which sinks keep the progress of streams.

`<pipeline>/<table id>`, of a shard `<pipeline>/<shard>-of-<shards>/<table id>`.
"""

import re
from typing import Final

__all__ = ["LAYOUT", "is_layout", "pipeline_of", "shard_name", "shard_of", "table_of"]


LAYOUT: Final = "/shards/layout"


def pipeline_of(app_id: str) -> str:
    """The pipeline that an app_id is about."""
    return app_id.rpartition("/")[0]


def table_of(app_id: str) -> str:
    """The id of the table that an app_id is about."""
    return app_id.rpartition("/")[2]


def shard_name(pipeline: str, shard: int, shards: int) -> str:
    """What a shard of `pipeline` is called as a pipeline of its own; `shard` is from 0 to below `shards`."""
    return f"{pipeline}/{shard}-of-{shards}"


def shard_of(app_id: str) -> tuple[int, int] | None:
    """Which shard of how many the app_id is about; None where its pipeline is not divided."""
    found = re.fullmatch(r".*/(\d+)-of-(\d+)", pipeline_of(app_id))
    return None if found is None else (int(found[1]), int(found[2]))


def is_layout(app_id: str) -> bool:
    """Whether the app_id is about the number of a pipeline's shards (`LAYOUT`): its versions are none of a table."""
    return app_id.endswith(LAYOUT)
