"""The stream behind `tailer.spark.follow`, planned by the driver's own Python.

For each stream of a Python data source Spark starts a Python process, which imports for a second before the first
micro-batch. Here Spark calls this process, as it does for `foreachBatch`: objects of Python stand for a source of
Spark's own interface, `MicroBatchStream`. There is no row between two offsets, and so no task: the function that Spark
calls with a micro-batch asks for the work that was planned for it.

The interface is public, but how a source gets into a query without a class of Java is not. So PySpark is pinned, and
`tests/integration/test_spark_follow.py` runs such queries. Offsets have the text that Spark makes of those of
`tailer.spark.source.data_source.StreamReader`, so checkpoints are the same.
"""

# ruff: noqa: N802, SLF001 - methods that Java calls have its names, and PySpark's ways to Java are private

import json
from typing import Any, Final

from py4j.clientserver import ClientServer
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from tailer.spark.session import is_remote
from tailer.spark.source.admission import Work
from tailer.spark.source.data_source import StreamReader, TailerSource
from tailer.spark.source.views import TypedView

__all__ = ["DriverStreams", "is_possible"]

_NAME: Final = "tailer_plans"  # in `explain`
_QUERY_ID: Final = "sql.streaming.queryId"
_CONNECTOR: Final = "org.apache.spark.sql.connector"


def is_possible(spark: SparkSession) -> bool:
    """Return whether Spark can call this process, each of its threads one of ours (`PYSPARK_PIN_THREAD`)."""
    return not is_remote(spark) and isinstance(spark.sparkContext._gateway, ClientServer)


class DriverStreams:
    """The streams of all queries that read `source`, which is loaded."""

    def __init__(self, spark: SparkSession, source: TailerSource) -> None:
        self.source = source
        self.java = _Java(spark)
        self._planned: dict[str, tuple[TypedView, Work]] = {}  # by query

    def frame(self) -> DataFrame:
        """Return a stream without columns and rows, which has the offsets of the source."""
        return self.java.stream(_Table(self))

    def planned(self) -> tuple[TypedView, Work]:
        """Return the form of rows and the work of a micro-batch. The function that Spark calls with it asks once."""
        return self._planned.pop(self.java.query_id())

    def plan(self, view: TypedView, work: Work) -> None:
        """Note the work of the micro-batch that Spark plans in this thread."""
        self._planned[self.java.query_id()] = view, work


class _Java:
    """The objects of Java that such a stream needs."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark: Any = spark
        self._context: Any = spark.sparkContext
        self._jvm: Any = self._context._jvm

    def named(self, name: str) -> Any:
        """Return a class, or an object of Scala."""
        found = getattr(self._jvm, name)
        return getattr(found, "MODULE$") if name.endswith("$") else found

    def of_connector(self, name: str) -> Any:
        """Return a class of the interface for sources."""
        return self.named(f"{_CONNECTOR}.{name}")

    def no(self, name: str) -> Any:
        """Return an empty array of a class of that interface."""
        return self._context._gateway.new_array(self.of_connector(name), 0)

    def columns(self) -> Any:
        """Return the columns of a stream without any."""
        return self.named("org.apache.spark.sql.types.StructType")()

    def offset(self, text: str) -> Any:
        """Return an offset as Spark makes it of a Python data source's."""
        return self.named("org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingSourceOffset")(text)

    def query_id(self) -> str:
        """Return the id of the query whose thread has called this process."""
        return str(self._context.getLocalProperty(_QUERY_ID))

    def stream(self, table: "_Table") -> DataFrame:
        """Return a stream of a table."""
        ensure_callback_server_started(self._context._gateway)  # type: ignore[no-untyped-call]
        none = self.named("scala.None$")
        relation = self.named("org.apache.spark.sql.catalyst.streaming.StreamingRelationV2")(
            none,
            _NAME,
            table,
            self.named("org.apache.spark.sql.util.CaseInsensitiveStringMap").empty(),
            self.named("scala.collection.immutable.Nil$"),
            none,
            none,
            none,
            self.named("org.apache.spark.sql.catalyst.streaming.Unassigned$"),
        )
        made = self.named("org.apache.spark.sql.classic.Dataset").ofRows(self._spark._jsparkSession, relation)
        return DataFrame(made, self._spark)


class _Called:
    """An object that Java calls; Spark compares such objects and shows them."""

    def __init__(self, streams: DriverStreams) -> None:
        self._streams = streams
        self._java = streams.java

    def toString(self) -> str:
        return _NAME

    def hashCode(self) -> int:
        return id(self) % 2**31

    def equals(self, other: Any) -> bool:
        return other is not None and other.hashCode() == self.hashCode()


class _Table(_Called):
    """A table that can be streamed, and its only scan."""

    def name(self) -> str:
        return _NAME

    def capabilities(self) -> Any:
        streamed = self._java.of_connector("catalog.TableCapability").MICRO_BATCH_READ
        return self._java.named("java.util.Collections").singleton(streamed)

    def newScanBuilder(self, _options: Any) -> "_Table":
        return self

    def build(self) -> "_Table":
        return self

    def readSchema(self) -> Any:
        return self._java.columns()

    def description(self) -> str:
        return _NAME

    def columnarSupportMode(self) -> Any:
        return self._java.of_connector("read.Scan$ColumnarSupportMode").UNSUPPORTED

    def supportedCustomMetrics(self) -> Any:
        return self._java.no("metric.CustomMetric")

    def reportDriverMetrics(self) -> Any:
        return self._java.no("metric.CustomTaskMetric")

    def toMicroBatchStream(self, _checkpoint: str) -> "_Stream":
        return _Stream(self._streams)

    class Java:
        """The interfaces of Java."""

        implements = (f"{_CONNECTOR}.catalog.SupportsRead", f"{_CONNECTOR}.read.ScanBuilder", f"{_CONNECTOR}.read.Scan")


class _Stream(_Called):
    """The stream of one start of a query."""

    def __init__(self, streams: DriverStreams) -> None:
        super().__init__(streams)
        chosen, view = streams.source.followed()
        assert isinstance(view, TypedView), "the envelope is no option"
        self._view = view
        self._reader = StreamReader(chosen, view)

    def prepareForTriggerAvailableNow(self) -> None:
        self._reader.prepareForTriggerAvailableNow()

    def initialOffset(self) -> Any:
        return self._java.offset(json.dumps(self._reader.initialOffset()))

    def getDefaultReadLimit(self) -> Any:
        limits = self._java.of_connector("read.streaming.ReadLimit")
        # The limits themselves are options: Spark has no form for several at once.
        return (
            limits.allAvailable()
            if isinstance(self._reader.getDefaultReadLimit(), ReadAllAvailable)
            else limits.maxFiles(1)
        )

    def latestOffset(self, start: Any, limit: Any) -> Any:
        everything = limit.getClass().getSimpleName() == ReadAllAvailable.__name__
        own: ReadLimit = ReadAllAvailable() if everything else self._reader.getDefaultReadLimit()
        return self._java.offset(json.dumps(self._reader.latestOffset(json.loads(start.json()), own)))

    def reportLatestOffset(self) -> Any:
        return self._java.offset(json.dumps(self._reader.reportLatestOffset()))

    def deserializeOffset(self, text: str) -> Any:
        return self._java.offset(text)

    def planInputPartitions(self, start: Any, end: Any) -> Any:
        self._streams.plan(self._view, self._reader.work(json.loads(start.json()), json.loads(end.json())))
        return self._java.no("read.InputPartition")

    def createReaderFactory(self) -> None:
        """Return nothing: without partitions there is nothing to read."""

    def commit(self, _end: Any) -> None:
        """Do nothing: all progress is in offsets."""

    def stop(self) -> None:
        self._reader.stop()

    class Java:
        """The interfaces of Java."""

        implements = tuple(
            f"{_CONNECTOR}.read.streaming.{name}" for name in ("MicroBatchStream", "SupportsTriggerAvailableNow")
        )
