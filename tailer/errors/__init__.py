"""All errors of lake-tailer, as one tree.

An error has fields with its facts; its message is formatted from them. `hint` is the operator's next step. `retry`
defines what the pipeline does next; only the pipeline retries::

    TailerError
    ├── ConfigError                 the configuration or the command line is wrong            exit 2
    ├── StorageError                                                                          exit 4
    │   ├── StorageUnavailable      the store did not answer; it may later           TIMED
    │   │   ├── CommitIncomplete    a commit file grew while it was read                 TIMED
    │   │   └── ScratchUnavailable  temporary files do not fit on the disk; they may later   TIMED
    │   ├── StorageRefused          the store refuses the request; an operator must act
    │   │   └── StorageAccessRefused  a store or a catalog refuses credentials, a bucket or a setting  BRIEF
    │   ├── ObjectNotFound          the object does not exist
    │   └── ObjectAlreadyExists     put-if-absent lost to another writer             ASK
    ├── LogError                    the table's log cannot be followed                        exit 3
    │   ├── NotATable               the location has no log
    │   ├── VersionGone             a needed version was cleaned up, or is missing between others
    │   ├── VersionAhead            the log ends before the requested version
    │   ├── LogCorrupt              a log file violates the protocol
    │   ├── LogRewritten            a delivered commit has been replaced
    │   ├── StateUnknown            after a gap in the log the table's state is unknown
    │   └── UnsupportedFeature      the table needs a feature that lake-tailer does not have
    ├── ChangeError                 the rows of a version cannot be read                      exit 3
    │   ├── ChangesUnavailable      the log does not define the changed rows
    │   ├── FileOutsideTable        a file lies outside of the folders that the table may use
    │   ├── FileVacuumed            a data, change or deletion-vector file is missing
    │   ├── SchemaChanged           the table's schema changed, which the pipeline forbids
    │   ├── TableReplaced           another table is now at this location
    │   └── DataCorrupt             a file contradicts itself or the log
    ├── ExpressionFailed            an expression of SQL fails for a row                  exit 3
    ├── EngineUnavailable           Spark did not answer, or failed; it may later    TIMED   exit 4
    └── SinkError                                                                             exit 4
        ├── SinkUnavailable         the destination did not answer; read its progress  ASK
        ├── CommitUnknown           the commit's answer was lost; read its progress    ASK
        ├── SinkRejected            the destination refuses this; an operator must act
        │   └── SinkAccessRefused   it refuses the login, or lacks a permission for it   BRIEF
        └── SinkFenced              another instance writes for this app_id            ONCE

Errors can be pickled, because tasks may run in other processes.
"""

from tailer.errors.changes import (
    ChangeError,
    ChangesUnavailable,
    DataCorrupt,
    FileOutsideTable,
    FileVacuumed,
    LogCorrupt,
    LogError,
    LogRewritten,
    NotATable,
    SchemaChanged,
    StateUnknown,
    TableReplaced,
    UnsupportedFeature,
    VersionAhead,
    VersionGone,
)
from tailer.errors.ends import (
    CommitIncomplete,
    CommitUnknown,
    ObjectAlreadyExists,
    ObjectNotFound,
    ScratchUnavailable,
    SinkAccessRefused,
    SinkError,
    SinkFenced,
    SinkRejected,
    SinkUnavailable,
    StorageAccessRefused,
    StorageError,
    StorageRefused,
    StorageUnavailable,
)
from tailer.errors.general import (
    ConfigError,
    EngineUnavailable,
    ExpressionFailed,
    Retry,
    TailerError,
    brief_errors,
    did_you_mean,
    duration,
    how_to_install,
    missing_client,
    one_line,
    printable,
)

__all__ = [
    "ChangeError",
    "ChangesUnavailable",
    "CommitIncomplete",
    "CommitUnknown",
    "ConfigError",
    "DataCorrupt",
    "EngineUnavailable",
    "ExpressionFailed",
    "FileOutsideTable",
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
    "SinkAccessRefused",
    "SinkError",
    "SinkFenced",
    "SinkRejected",
    "SinkUnavailable",
    "StateUnknown",
    "StorageAccessRefused",
    "StorageError",
    "StorageRefused",
    "StorageUnavailable",
    "TableReplaced",
    "TailerError",
    "UnsupportedFeature",
    "VersionAhead",
    "VersionGone",
    "brief_errors",
    "did_you_mean",
    "duration",
    "how_to_install",
    "missing_client",
    "one_line",
    "printable",
]
