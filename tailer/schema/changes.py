"""What became of a table's columns between two schemas, in words for operators and for whoever reads the stream.

Two schemas of one table are compared by what tells its columns apart over time (`tailer.schema.identity`), which is not
what they are called, on every level of nesting.
"""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

import pyarrow as pa

from tailer.schema.columns import column_id, widens
from tailer.schema.identity import identified

__all__ = ["describe_changes"]


def describe_changes(before: pa.Schema, after: pa.Schema) -> tuple[str, ...]:
    """What became of the columns, and of the fields in them on every level: a sentence each, in a fixed order.

    A column is the same if its physical name is; where a table began to map columns, that is the name it had. Where it
    ended that and changed nothing else, names are the same. Empty where both schemas read alike.
    """
    old, new = (pa.struct(list(schema)) for schema in identified([before, after]))
    return tuple(_differences(old, new, ""))


def _differences(before: pa.StructType, after: pa.StructType, above: str) -> Iterator[str]:
    old, new = ({column_id(field): field for field in kind} for kind in (before, after))
    for key, field in old.items():
        if key not in new:
            yield f"column {above}{field.name} was dropped"
    stay = _in_place([key for key in old if key in new], [key for key in new if key in old])
    for key, field in new.items():
        name = above + field.name
        if key not in old:
            yield f"column {name} {field.type} was added"
            continue
        if old[key].name != field.name:
            yield f"column {above}{old[key].name} was renamed to {name}"
        if key not in stay:
            yield f"column {name} moved"
        yield from _field_differences(old[key], field, name)


def _field_differences(before: pa.Field, after: pa.Field, name: str) -> Iterator[str]:
    """What is different about a field besides its name and place. `name`: what to call it."""
    if before.nullable != after.nullable:
        yield f"column {name} may be null now" if after.nullable else f"column {name} may not be null any more"
    old, new = before.type, after.type
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        yield from _differences(old, new, f"{name}.")
    elif pa.types.is_list(old) and pa.types.is_list(new):
        yield from _field_differences(old.value_field, new.value_field, f"{name}.element")
    elif pa.types.is_map(old) and pa.types.is_map(new):
        yield from _field_differences(old.key_field, new.key_field, f"{name}.key")
        yield from _field_differences(old.item_field, new.item_field, f"{name}.value")
    elif not old.equals(new):
        how = "was widened" if widens(old, new) else "changed its type"
        yield f"column {name} {how} from {old} to {new}"


def _in_place(before: Sequence[str], after: Sequence[str]) -> set[str]:
    """Those of the same names in two orders that need not have moved."""
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    return {name for block in blocks for name in before[block.a : block.a + block.size]}
