"""Table formats, each a folder, or a package elsewhere with an entry point (`tailer.formats`).

port        what everything else needs to know of a format
rows        the rows of any task, by the reader that it names
registry    the formats there are, and the one that a location has
loaded      the formats that this process has imported
locations   reasons why there is no table at a location
"""

__all__: list[str] = []
