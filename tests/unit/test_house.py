"""The gate: the spine knows no room, neither grows, and an option is declared once.

`tests/house.py` says what is spine and what is a room. That each guarantee of `docs/guarantees.md` and
`tests/GUARANTEES.md` names a test that exists is checked by `tests/test_readme.py`.
"""

from collections import defaultdict
from graphlib import TopologicalSorter
from itertools import combinations
from typing import Final

import msgspec

from tailer.spark.source import options as source
from tests.generate_docs import SECTIONS, descriptions
from tests.house import (
    MODULES,
    PRODUCT_LINES,
    READING_ORDER,
    ROOMS,
    SPINE,
    SPINE_LINES,
    Part,
    imported,
    known,
    lines,
    part_of,
    sizes,
)
from tests.support.cases import cases

RAISED: Final = (
    "{what} has {now} lines, and may have {most}: delete some, or build a room. To raise the number in tests/house.py, "
    "say in docs/architecture.md, under What was refused, what that was in its place. "
    "Then run python -m tests.generate_docs."
)
# Sinks import nothing of each other.
SAME_IN_TWO_SINKS: Final = {"key"}
# Texts on Spark: a list separated by commas.
OTHERWISE_ON_SPARK: Final = {"allowed_roots"}


def test_each_module_belongs_to_the_spine_or_to_a_room() -> None:
    homeless = [module for module in MODULES if part_of(module) is None]
    assert not homeless, f"add these to SPINE or ROOMS of tests/house.py: {homeless}"
    prefixes = [prefix for part in (*SPINE, *ROOMS) for prefix in part.prefixes.split()]
    assert sorted(prefixes) == sorted(set(prefixes))
    assert not [prefix for prefix in prefixes if prefix not in MODULES]
    assert {part_of(module) for module in READING_ORDER} <= {*SPINE}


def test_no_modules_know_each_other_in_a_circle() -> None:
    modules = {module for module, path in MODULES.items() if path.stem != "__init__"}  # those only hand names on
    TopologicalSorter({module: known(module) & modules for module in modules}).prepare()


@cases("room", ROOMS)
def test_the_spine_knows_no_room(room: Part) -> None:
    knowing = {
        module
        for module in MODULES
        if part_of(module) in SPINE and any(part_of(name) is room for name in imported(module))
    }
    allowed = {*room.known_by.split()}
    new = sorted(knowing - allowed)
    assert not new, f"{new} import {room.prefixes}: import it in the function that needs it, or turn it round"
    assert not allowed - knowing, f"take {sorted(allowed - knowing)} off known_by in tests/house.py"
    assert bool(room.known_by) == bool(room.because)


def test_the_spine_and_the_product_do_not_grow() -> None:
    spine, product = lines(*SPINE), sum(sizes().values())
    assert spine <= SPINE_LINES, RAISED.format(what="the spine", now=spine, most=SPINE_LINES)
    assert product <= PRODUCT_LINES, RAISED.format(what="the product", now=product, most=PRODUCT_LINES)


def declarations(*kinds: type[msgspec.Struct]) -> dict[str, set[type]]:
    """Return, for each field of some structs, the classes that declare it, be it for others to inherit."""
    found: dict[str, set[type]] = defaultdict(set)
    for kind in kinds:
        for base in kind.__mro__:
            for name in set(vars(base).get("__annotations__", ())) & set(kind.__struct_fields__):
                found[name].add(base)
    return found


def test_an_option_is_declared_in_one_struct() -> None:
    kinds = [kind for *_, kind in SECTIONS]
    for one, other in combinations(kinds, 2):
        texts = descriptions(one), descriptions(other)
        same = {name for name in texts[0].keys() & texts[1].keys() if texts[0][name] == texts[1][name]}
        twice = {name for name in same if len(declarations(one, other)[name]) > 1}
        assert twice <= SAME_IN_TWO_SINKS, (
            f"{one} and {other} declare {twice}: declare it in a struct that both inherit"
        )
    in_the_file, on_spark = declarations(*kinds[:3]), declarations(source._Given)
    twice = {name for name in in_the_file.keys() & on_spark.keys() if in_the_file[name] != on_spark[name]}
    assert twice == OTHERWISE_ON_SPARK, "inherit the declaration of the configuration"
