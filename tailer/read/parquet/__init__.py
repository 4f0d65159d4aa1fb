"""Parts of Parquet files that Arrow does not show: sizes in footers and dictionaries, and timestamps of 96 bits."""

__all__: list[str] = []
