"""Every way lake-tailer can stop, as one tree.

An error carries fields, not a formatted string: what failed is read from the fields, the sentence is made from them,
and `hint` is the operator's next step. `retry` tells the pipeline, which is the only place that retries, what to do::

    TailerError
    ├── ConfigError                 the configuration or the command line is wrong            exit 2
    ├── StorageError                                                                          exit 4
    │   ├── StorageUnavailable      the store did not answer; it may later           TIMED
    │   │   └── ScratchUnavailable  temporary files do not fit on the disk; they may later
    │   ├── StorageRefused          the store answers, and will not; a person must look
    │   ├── ObjectNotFound          the object is not there
    │   └── ObjectAlreadyExists     put-if-absent lost to another writer
    ├── LogError                    the table's log cannot be followed                        exit 3
    │   ├── NotATable               there is no log
    │   ├── VersionGone             a version we need was cleaned up, or is missing in the middle
    │   ├── VersionAhead            the log ends before the version asked for
    │   ├── LogCorrupt              a log file is not what the protocol says
    │   ├── LogRewritten            a commit that was delivered is another one now
    │   ├── StateUnknown            after a gap in the log, nothing tells the table's state
    │   └── UnsupportedFeature      the table needs a reader feature we do not have
    ├── ChangeError                 the rows of a version cannot be given                     exit 3
    │   ├── ChangesUnavailable      the log does not say enough to tell the rows
    │   ├── FileVacuumed            a data, change or deletion-vector file is gone
    │   ├── SchemaChanged           the table's schema moved where it must not
    │   ├── TableReplaced           the table at this location is another one now
    │   └── DataCorrupt             a file contradicts itself or the log
    ├── EngineUnavailable           Spark did not answer, or gave up; it may later   TIMED   exit 4
    └── SinkError                                                                             exit 4
        ├── SinkUnavailable         the destination did not answer; ask it what it has ASK
        ├── CommitUnknown           the commit's answer was lost; ask it what it has   ASK
        ├── SinkRejected            the destination refuses this; a person must look
        └── SinkFenced              another instance writes for this app_id            NEVER

Errors survive pickling, because tasks run in other processes.
"""

from tailer.errors.change import (
    ChangeError,
    ChangesUnavailable,
    DataCorrupt,
    FileVacuumed,
    SchemaChanged,
    TableReplaced,
)
from tailer.errors.extras import how_to_install
from tailer.errors.general import ConfigError, EngineUnavailable, Retry, TailerError
from tailer.errors.log import (
    LogCorrupt,
    LogError,
    LogRewritten,
    NotATable,
    StateUnknown,
    UnsupportedFeature,
    VersionAhead,
    VersionGone,
)
from tailer.errors.sink import CommitUnknown, SinkError, SinkFenced, SinkRejected, SinkUnavailable
from tailer.errors.spelling import did_you_mean
from tailer.errors.storage import (
    ObjectAlreadyExists,
    ObjectNotFound,
    ScratchUnavailable,
    StorageError,
    StorageRefused,
    StorageUnavailable,
)

__all__ = [
    "ChangeError",
    "ChangesUnavailable",
    "CommitUnknown",
    "ConfigError",
    "DataCorrupt",
    "EngineUnavailable",
    "FileVacuumed",
    "LogCorrupt",
    "LogError",
    "LogRewritten",
    "NotATable",
    "ObjectAlreadyExists",
    "ObjectNotFound",
    "Retry",
    "SchemaChanged",
    "ScratchUnavailable",
    "SinkError",
    "SinkFenced",
    "SinkRejected",
    "SinkUnavailable",
    "StateUnknown",
    "StorageError",
    "StorageRefused",
    "StorageUnavailable",
    "TableReplaced",
    "TailerError",
    "UnsupportedFeature",
    "VersionAhead",
    "VersionGone",
    "did_you_mean",
    "how_to_install",
]
