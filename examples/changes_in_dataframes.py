"""Read the changes of a table into a pandas or a Polars data frame, and ask two questions of them.

    pip install lake-tailer polars        # or pandas, or both
    python changes_in_dataframes.py TABLE [polars | pandas]

The table has the columns `id` and `amount`.
"""

import sys

import tailer


def with_polars(table: str) -> None:
    """Print how often each id was updated, and what each is worth now."""
    import polars as pl

    steps = tailer.changes(table, compute_updates=True, key=["id"]).to_polars()
    updates = steps.filter(pl.col("_change_type") == "update_postimage").group_by("id").len().sort("id")
    print("updates:", updates.rows())
    # The net changes from the first version on are the rows of the table as they are now.
    rows = tailer.changes(table, columns=["id", "amount"], net=True).to_polars().sort("id")
    print("amounts:", rows.select("id", "amount").rows())


def with_pandas(table: str) -> None:
    """Do the same with pandas."""
    steps = tailer.changes(table, compute_updates=True, key=["id"]).to_pandas()
    updates = steps[steps["_change_type"] == "update_postimage"].groupby("id").size().sort_index()
    print("updates:", list(updates.items()))
    rows = tailer.changes(table, columns=["id", "amount"], net=True).to_pandas().sort_values("id")
    print("amounts:", list(rows[["id", "amount"]].itertuples(index=False, name=None)))


if __name__ == "__main__":
    table, library = [*sys.argv[1:], "polars"][:2]
    {"polars": with_polars, "pandas": with_pandas}[library](table)
