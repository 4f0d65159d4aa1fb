"""The command `tailer`: run a verb, and report an error as an exit code, a line and a hint.

====  ====================================================================================
code  meaning
====  ====================================================================================
0     done; also after Ctrl-C or SIGTERM, or when the reader of our output has gone
1     a bug in lake-tailer: a traceback, and a request to report it
2     the command line or the configuration is wrong
3     the table cannot be followed: a person has to act
4     the source or the sink is unavailable, or standard output cannot be written
5     `tailer verify`: the mirror differs from its source
130   interrupted before any work began
====  ====================================================================================

If several pipelines ended with errors, the code is that of the most severe one: 1, then 3, 2, 4.
"""

import atexit
import os
import signal
import sys
from types import FrameType
from typing import Final

__all__ = ["main"]

# Arrow's other allocators keep far more of the memory that batches have left.
ALLOCATOR: Final = ("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
_WITH_THREADS: Final = frozenset({"obstore"})
_INTERRUPTED: Final = 130


def main() -> None:
    """Entry point of the console script. It imports little before it is ready for signals."""
    ignores_interrupts = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as a shell's command with & does
    for number in (signal.SIGTERM,) if ignores_interrupts else (signal.SIGTERM, signal.SIGINT):
        # While modules are imported, an exception would be a traceback.
        signal.signal(number, lambda *_: os._exit(_INTERRUPTED))
    os.environ.setdefault(*ALLOCATOR)
    from tailer.cli.outcome import run_verb  # noqa: PLC0415 - takes a third of a second

    if not ignores_interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    code = run_verb()
    from tailer.formats import thread_libraries  # noqa: PLC0415 - as above

    # Threads of obstore, and of libraries that read some formats, go on while the interpreter goes away, and sometimes
    # abort the process over that. So the work that is due at the end is done, and the interpreter is left alone.
    if (_WITH_THREADS | thread_libraries()).isdisjoint(sys.modules):
        sys.exit(code)
    atexit._run_exitfuncs()  # noqa: SLF001 - as multiprocessing does; there is no public name
    os._exit(code)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Do at SIGTERM what Ctrl-C does at this moment: an event loop cancels its work."""
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


if __name__ == "__main__":
    main()
