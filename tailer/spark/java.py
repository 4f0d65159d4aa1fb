"""Objects of Spark's Java that PySpark has no name for, and objects of Python that Java calls.

Such objects put a source of our own into a query. Their interfaces are public, but the ways into a query are not. So
PySpark is pinned, and sessions of another release are refused. For the next release, change the names that
`test_spark_native.py` and `test_spark_follow.py` in `tests/integration` find wrong, then `_SPARK`.
"""

# ruff: noqa: N802, SLF001 - methods that Java calls have its names, and PySpark's ways to Java are private

from functools import lru_cache
from typing import Any, Final

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from tailer.errors import ConfigError

__all__ = ["Called", "Jvm", "check_session"]

_SPARK: Final = "4.2."  # the release whose classes are named by the users of this module


def check_session(spark: SparkSession) -> None:
    """Raise `ConfigError` if the session has no Java objects that we know: one of Spark Connect has none."""
    kind = f"Spark {spark.version}" if hasattr(spark, "_jsparkSession") else "Spark Connect"
    if not kind.startswith(f"Spark {_SPARK}"):
        remedy = 'Give a classic session of Spark 4.2 (SparkSession.builder.master(...)), or use format("tailer").'
        raise ConfigError("spark", f"is a session of {kind}", remedy)


class Jvm:
    """The objects of Java behind a session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.session: Any = spark._jsparkSession
        self._gateway: Any = spark.sparkContext._gateway
        self._jvm: Any = spark.sparkContext._jvm

    def listen(self) -> None:
        """Begin to listen for calls."""
        ensure_callback_server_started(self._gateway)  # type: ignore[no-untyped-call]

    def lookup(self, name: str) -> Any:
        """Return a class, or an object of Scala if the name ends with `$`."""
        value = getattr(self._jvm, name)
        return getattr(value, "MODULE$") if name.endswith("$") else value

    def array(self, name: str, *items: Any) -> Any:
        array = self._gateway.new_array(self.lookup(name), len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array

    def compile(self, name: str, source: str) -> Any:
        """Return the class with a name that Spark's own compiler makes of the text of a file of Java."""
        return _compile(self._gateway, name, source)

    def create(self, compiled: Any, *arguments: Any) -> Any:
        """Return an object of a class that was compiled. It has one constructor."""
        return compiled.getConstructors()[0].newInstance(self.array("java.lang.Object", *arguments))


@lru_cache(maxsize=4)
def _compile(gateway: Any, name: str, source: str) -> Any:
    compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(gateway.jvm.org.apache.spark.util.Utils.getSparkClassLoader())
    compiler.cook(source)
    return compiler.getClassLoader().loadClass(name)


class Called:
    """An object that Java calls; Spark compares such objects and shows them.

    An object of Java that is returned to it must live here until Java has looked it up: py4j forgets it when it is
    collected, and Java would get null.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def toString(self) -> str:
        return self._name

    def hashCode(self) -> int:
        return id(self) % 2**31

    def equals(self, other: Any) -> bool:
        return other is not None and other.hashCode() == self.hashCode()
