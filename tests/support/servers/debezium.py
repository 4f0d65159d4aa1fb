"""Debezium's and Kafka Connect's own libraries, called from Python: to read our messages, and to write theirs.

They run in a separate JVM, because Spark's has other versions of their dependencies. It ends with this process.
"""

import json
import os
from types import TracebackType
from typing import Any, Final, Self

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests.jars.where import jars

__all__ = ["DebeziumLibrary"]

_TOPIC: Final = "topic"  # Connect's JSON converter requires one, but ignores it


class DebeziumLibrary:
    """A JVM with the libraries: started when made, or entered and left as a context. Raises `MissingJarsError`.

    Schemas are in the form of Connect's JSON converter.
    """

    def __init__(self) -> None:
        port = launch_gateway(
            classpath=os.pathsep.join(map(str, jars("connect"))), javaopts=["-XX:TieredStopAtLevel=1"], die_on_exit=True
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        self._java = self._gateway.jvm
        self._converter = self._java.org.apache.kafka.connect.json.JsonConverter()
        self._converter.configure({"schemas.enable": "true"}, False)

    def read(self, text: bytes) -> Any:
        """Convert a message to Connect's own form, check it there, and write it back; return it as Python's JSON has
        it.

        Fields that Connect does not know are missing, and misinterpreted ones have the wrong value. Raises
        `Py4JJavaError` with Connect's `DataException` if it refuses the message.
        """
        read = self._converter.toConnectData(_TOPIC, text)
        if read.schema().type().toString() == "STRUCT":
            read.value().validate()
        return json.loads(bytes(self._converter.fromConnectData(_TOPIC, read.schema(), read.value())))

    def written(self, value: float) -> Any:
        """Return the text that Connect writes for a double."""
        schema = self._java.org.apache.kafka.connect.data.Schema.FLOAT64_SCHEMA
        return json.loads(bytes(self._converter.fromConnectData(_TOPIC, schema, value)))["payload"]

    def envelope_schema(self, text: bytes) -> Any:
        """Return Debezium's own schema of values for the rows and the source in a message's schema."""
        schema = self._converter.toConnectData(_TOPIC, text).schema()
        envelope = self._java.io.debezium.data.Envelope.defineSchema().withName(schema.name())
        envelope = envelope.withRecord(schema.field("after").schema()).withSource(schema.field("source").schema())
        envelope = envelope.withTransaction(self._factory().transactionBlockSchema())
        return self._described(envelope.build().schema())

    def source_schema(self) -> Any:
        """Return the schema of the source fields that every Debezium connector writes, before its own fields."""
        return self._described(self._factory().sourceInfoSchemaBuilder().build())

    def is_envelope(self, text: bytes) -> bool:
        """Return whether Debezium accepts a message as its own."""
        schema = self._converter.toConnectData(_TOPIC, text).schema()
        return bool(self._java.io.debezium.data.Envelope.isEnvelopeSchema(schema))

    def close(self) -> None:
        """Stop the JVM."""
        self._gateway.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _factory(self) -> Any:
        return self._java.io.debezium.schema.SchemaFactory.get()

    def _described(self, schema: Any) -> Any:
        return json.loads(self._converter.asJsonSchema(schema).toString())
