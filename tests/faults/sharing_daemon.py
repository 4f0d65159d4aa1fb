"""The command `tailer`, whose executors compare a version together however small it is."""

from tailer.__main__ import main
from tailer.spark.native import comparing

if __name__ == "__main__":
    comparing.SHARED_BYTES = 0  # type: ignore[misc]
    main()
