"""The stream behind `tailer.spark.follow`: Spark's `MicroBatchStream`, implemented in Python through py4j.

It yields offsets, never rows, so Spark runs no task for it. The function that Spark calls with a micro-batch asks for
the work that was planned for it (`DriverStreams.planned`). The stream of a Python data source would have a Python
process of its own, which imports for a second before the first micro-batch.

Offsets have the text that Spark makes of those of `tailer.spark.source.data_source.StreamReader`, so checkpoints are
the same.
"""

# ruff: noqa: N802 - methods that Java calls have its names

import json
from typing import Any, Final

from py4j.clientserver import ClientServer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from tailer.errors import ConfigError
from tailer.spark.java import Called, Jvm
from tailer.spark.source.admission import Work
from tailer.spark.source.data_source import StreamReader, TailerSource
from tailer.spark.source.views import TypedView

__all__ = ["DriverStreams", "check_stream"]

_NAME: Final = "tailer_plans"  # in `explain`
_EVOLUTION: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"  # needs names of sources
_QUERY_ID: Final = "sql.streaming.queryId"
_CONNECTOR: Final = "org.apache.spark.sql.connector"


def check_stream(spark: SparkSession) -> None:
    """Raise `ConfigError` for a setting with which Spark cannot call this process for a stream."""
    remedy = 'Leave it as it is by default, or use spark.readStream.format("tailer").'
    if not isinstance(spark.sparkContext._gateway, ClientServer):  # noqa: SLF001 - there is no public name
        raise ConfigError("environment PYSPARK_PIN_THREAD", "keeps Spark from calling this process", remedy)
    if spark.conf.get(_EVOLUTION, "false") == "true":
        raise ConfigError(_EVOLUTION, "needs a name for each source, which this one lacks", remedy)


class DriverStreams:
    """The streams of all queries that read `source`, which is loaded."""

    def __init__(self, spark: SparkSession, source: TailerSource) -> None:
        self.source = source
        self.java = _Jvm(spark)
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


class _Jvm(Jvm):
    """The objects of Java that such a stream needs."""

    def connector_class(self, name: str) -> Any:
        """Return a class of the interface for sources."""
        return self.lookup(f"{_CONNECTOR}.{name}")

    def empty_array(self, name: str) -> Any:
        """Return an empty array of a class of that interface."""
        return self.array(f"{_CONNECTOR}.{name}")

    def offset(self, text: str) -> Any:
        """Return an offset as Spark makes it of a Python data source's."""
        return self.lookup("org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingSourceOffset")(text)

    def query_id(self) -> str:
        """Return the id of the query whose thread has called this process."""
        return str(self.spark.sparkContext.getLocalProperty(_QUERY_ID))

    def stream(self, table: "_Table") -> DataFrame:
        """Return a stream of a table."""
        self.listen()
        none = self.lookup("scala.None$")
        relation = self.lookup("org.apache.spark.sql.catalyst.streaming.StreamingRelationV2")(
            none,
            _NAME,
            table,
            self.lookup("org.apache.spark.sql.util.CaseInsensitiveStringMap").empty(),
            self.lookup("scala.collection.immutable.Nil$"),
            none,
            none,
            none,
            self.lookup("org.apache.spark.sql.catalyst.streaming.Unassigned$"),
        )
        rows = self.lookup("org.apache.spark.sql.classic.Dataset").ofRows(self.session, relation)
        return DataFrame(rows, self.spark)


class _StreamObject(Called):
    """An object that Java calls for one of the streams."""

    def __init__(self, streams: DriverStreams) -> None:
        super().__init__(_NAME)
        self._streams = streams
        self._java = streams.java


class _Table(_StreamObject):
    """A table that can be streamed, and its only scan."""

    def __init__(self, streams: DriverStreams) -> None:
        super().__init__(streams)
        java = self._java
        streamed = java.connector_class("catalog.TableCapability").MICRO_BATCH_READ
        self._capabilities = java.lookup("java.util.Collections").singleton(streamed)
        self._columns = java.lookup("org.apache.spark.sql.types.StructType")()
        self._support = java.connector_class("read.Scan$ColumnarSupportMode").UNSUPPORTED
        self._metrics = java.empty_array("metric.CustomMetric")
        self._task_metrics = java.empty_array("metric.CustomTaskMetric")

    def name(self) -> str:
        return _NAME

    def capabilities(self) -> Any:
        return self._capabilities

    def newScanBuilder(self, _options: Any) -> "_Table":
        return self

    def build(self) -> "_Table":
        return self

    def readSchema(self) -> Any:
        return self._columns

    def description(self) -> str:
        return _NAME

    def columnarSupportMode(self) -> Any:
        return self._support

    def supportedCustomMetrics(self) -> Any:
        return self._metrics

    def reportDriverMetrics(self) -> Any:
        return self._task_metrics

    def toMicroBatchStream(self, _checkpoint: str) -> "_Stream":
        return _Stream(self._streams)

    class Java:
        """The interfaces of Java."""

        implements = (f"{_CONNECTOR}.catalog.SupportsRead", f"{_CONNECTOR}.read.ScanBuilder", f"{_CONNECTOR}.read.Scan")


class _Stream(_StreamObject):
    """The stream of one start of a query."""

    def __init__(self, streams: DriverStreams) -> None:
        super().__init__(streams)
        chosen, view = streams.source.followed()
        assert isinstance(view, TypedView), "the envelope is no option"
        self._view = view
        self._reader = StreamReader(chosen, view)
        self._returned: Any = None  # Java calls a stream from one thread

    def prepareForTriggerAvailableNow(self) -> None:
        try:
            self._reader.prepareForTriggerAvailableNow()
        except BaseException:
            self._reader.stop()  # Spark stops only streams that have begun
            raise

    def initialOffset(self) -> Any:
        return self._offset(self._reader.initialOffset())

    def getDefaultReadLimit(self) -> Any:
        limits = self._java.connector_class("read.streaming.ReadLimit")
        is_all = isinstance(self._reader.getDefaultReadLimit(), ReadAllAvailable)
        # The limits themselves are options: Spark has no form for several at once.
        return self._keep(limits.allAvailable() if is_all else limits.maxFiles(1))

    def latestOffset(self, start: Any, limit: Any) -> Any:
        everything = limit.getClass().getSimpleName() == ReadAllAvailable.__name__
        own: ReadLimit = ReadAllAvailable() if everything else self._reader.getDefaultReadLimit()
        return self._offset(self._reader.latestOffset(json.loads(start.json()), own))

    def reportLatestOffset(self) -> Any:
        return self._offset(self._reader.reportLatestOffset())

    def deserializeOffset(self, text: str) -> Any:
        return self._keep(self._java.offset(text))

    def planInputPartitions(self, start: Any, end: Any) -> Any:
        self._streams.plan(self._view, self._reader.work(json.loads(start.json()), json.loads(end.json())))
        return self._keep(self._java.empty_array("read.InputPartition"))

    def createReaderFactory(self) -> None:
        """Return nothing: without partitions there is nothing to read."""

    def commit(self, _end: Any) -> None:
        """Do nothing: all progress is in offsets."""

    def stop(self) -> None:
        self._reader.stop()

    def _offset(self, place: object) -> Any:
        return self._keep(self._java.offset(json.dumps(place)))

    def _keep(self, value: Any) -> Any:
        self._returned = value
        return value

    class Java:
        """The interfaces of Java."""

        implements = tuple(
            f"{_CONNECTOR}.read.streaming.{name}" for name in ("MicroBatchStream", "SupportsTriggerAvailableNow")
        )
