"""Descriptions of the differences between two schemas, for operators and for consumers of the stream.

Columns of two schemas of a table are matched by their identity over time (`tailer.schema.identity`), not by name, on
every level of nesting.
"""

from collections.abc import Iterator
from difflib import SequenceMatcher

import pyarrow as pa

from tailer.events import is_struct, type_text
from tailer.schema.columns import column_id, widens
from tailer.schema.identity import identified
from tailer.schema.text_types import char_notes, collations

__all__ = ["describe_changes", "former_names"]


def describe_changes(before: pa.Schema, after: pa.Schema) -> tuple[str, ...]:
    """Describe the changes of columns and nested fields, one sentence each, in a fixed order.

    Columns are matched by physical name; where a table starts to map columns, that is the old column name. Where it
    stops mapping and changes nothing else, columns are matched by name. Empty where the schemas do not differ.
    """
    if before is after:  # as in most versions
        return ()
    old, new = (pa.struct(list(schema)) for schema in identified([before, after]))
    return tuple(_differences(old, new, ""))


def former_names(before: pa.Schema, after: pa.Schema) -> dict[str, str]:
    """Return the name in `before` of each column of `after` that is there, by its name in `after`."""
    old, new = identified([before, after])
    names = {column_id(column): column.name for column in old}
    return {column.name: names[column_id(column)] for column in new if column_id(column) in names}


def _differences(before: pa.StructType, after: pa.StructType, above: str) -> Iterator[str]:
    old, new = ({column_id(field): field for field in kind} for kind in (before, after))
    for key, field in old.items():
        if key not in new:
            yield f"column {above}{field.name} was dropped"
    stayed = [key for key in old if key in new]
    blocks = SequenceMatcher(None, stayed, [key for key in new if key in old], autojunk=False).get_matching_blocks()
    unmoved = {key for block in blocks for key in stayed[block.a : block.a + block.size]}
    for key, field in new.items():
        name = above + field.name
        if key not in old:
            yield f"column {name} {type_text(field.type)} was added"
            continue
        if old[key].name != field.name:
            yield f"column {above}{old[key].name} was renamed to {name}"
        if key not in unmoved:
            yield f"column {name} moved"
        yield from _field_differences(old[key], field, name)
        if char_notes(old[key]) != char_notes(field):
            yield f"column {name} has other CHARs: its values are padded to other lengths"
        if collations(old[key]) != collations(field):
            yield f"column {name} has other collations: its values compare otherwise, and are the same"


def _field_differences(before: pa.Field, after: pa.Field, name: str) -> Iterator[str]:
    """Describe the changes of a field except its name and position. `name`: the name in messages."""
    if before.nullable != after.nullable:
        yield f"column {name} may be null now" if after.nullable else f"column {name} may not be null any more"
    old, new = before.type, after.type
    if is_struct(old) and is_struct(new):
        yield from _differences(old, new, f"{name}.")
    elif pa.types.is_list(old) and pa.types.is_list(new):
        yield from _field_differences(old.value_field, new.value_field, f"{name}.element")
    elif pa.types.is_map(old) and pa.types.is_map(new):
        yield from _field_differences(old.key_field, new.key_field, f"{name}.key")
        yield from _field_differences(old.item_field, new.item_field, f"{name}.value")
    elif not old.equals(new):
        how = "was widened" if widens(old, new) else "changed its type"
        yield f"column {name} {how} from {type_text(old)} to {type_text(new)}"
