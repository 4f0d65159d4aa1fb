"""Schemas as text, for JSON: in Arrow's serialized form, with the metadata of fields."""

import base64

import pyarrow as pa

__all__ = ["schema_from_text", "schema_to_text"]


def schema_to_text(schema: pa.Schema) -> str:
    """Return a schema as text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def schema_from_text(text: str) -> pa.Schema:
    """Rebuild a schema from the text that `schema_to_text` returned."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
