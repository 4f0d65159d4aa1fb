"""Tables of values as one test: each row is a subtest, reported by itself, without the cost of a test of its own."""

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Final

import pytest

__all__ = ["cases"]

_SHOWN: Final = 200  # characters of a row

Test = Callable[..., None]


def cases(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Run the test with each row for its arguments `names`, as `parametrize` does, but in one test.

    For tests that need nothing made anew for each row: rows share the fixtures of the test.
    """

    given = (names,) if isinstance(names, str) else names

    def decorate(test: Test) -> Test:
        @wraps(test)
        def run(*self: Any, subtests: pytest.Subtests, **fixtures: Any) -> None:
            for row in rows:
                values = dict(zip(given, (row,) if isinstance(names, str) else row, strict=True))
                with subtests.test(repr(values)[:_SHOWN]):
                    test(*self, **fixtures, **values)

        left = [parameter for name, parameter in signature(test).parameters.items() if name not in given]
        asked = Parameter("subtests", Parameter.KEYWORD_ONLY)
        run.__signature__ = signature(test).replace(parameters=[*left, asked])  # type: ignore[attr-defined]
        return run

    return decorate
