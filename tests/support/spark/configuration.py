"""A configuration of a daemon that has Spark in its own process."""

from pathlib import Path

from tests.support.spark.session import delta_jars

__all__ = ["configuration"]


def configuration(folder: Path, engine: str, name: str = "", more: str = "") -> Path:
    """Write a configuration of a pipeline from `source` to `target-<name>`, with Spark in the same process."""
    name = name or engine
    path = folder / f"{name}.toml"
    path.write_text(
        f"""
        engine = "{engine}"
        drain_s = 60
        [spark]
        master = "local[2]"
        [spark.conf]
        "spark.ui.enabled" = false
        "spark.driver.bindAddress" = "127.0.0.1"
        "spark.local.dir" = "{folder / "spark"}"
        "spark.jars" = "{",".join(map(str, delta_jars()))}"
        [pipelines.orders]
        table = "source"
        carryovers = "drop"
        poll_interval_s = 0.1
        {more}
        [pipelines.orders.sink]
        kind = "delta"
        path = "target-{name}"
        """
    )
    return path
