"""Words of data files that any format shares.

deletion_vector    which rows of a file are meant: bitmaps in a file or in text
row_bitmaps        row positions as bitmaps and as Arrow arrays
partition_values   partition values as Arrow scalars
"""

__all__: list[str] = []
