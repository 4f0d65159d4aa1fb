"""Print the functions of a way, in the order of their first call: `python -m tests.support.paths KIND`.

KIND: `append` or `update` (one more version on its way to Kafka), `tail`, `verify` or `spark`.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.paths import delivery, reading

if __name__ == "__main__":
    (kind,) = sys.argv[1:]
    with TemporaryDirectory() as folder:
        executed = (delivery if kind in delivery.KINDS else reading).execute(kind, Path(folder))
    for module, function in executed.functions:
        print(f"{module}: {function}")
    for message in executed.messages:
        print(message)
    print(f"rows pass {', '.join(sorted(executed.carriers))}")
    print(f"{len(executed.modules)} modules, {len(executed.functions)} functions")
