"""Follow a live table with the real daemon, kill the daemon, and compare the copy with the table's own history.

    make demo                                          # in a clone; a Delta table, written by Spark
    .venv/bin/python -m examples.demo --format lance   # after any `make`; a Lance dataset, written by pylance

::

    __main__   the command: its option, its errors, its exit code
    stage      the order of events, and their display
    writer     the port of the writers, which create the table, then insert, update, delete and merge rows
    spark      a local Spark with Delta, or an error that says what to install
    shop       the writer of a Delta table
    lance_shop the writer of a Lance dataset, and its comparison
    follower   the daemon as a process of its own: started, killed, started again; its events as they arrive
    proof      the comparison of the delivered events with Spark's change feed

Only the table is made for the demonstration: the daemon is `tailer run` with a configuration.
"""

__all__: list[str] = []
