"""Values that a database cannot hold, and what the option `on_bad_value` makes of them.

`faults` finds them, a column at a time. `policy` mends the rows before they are loaded, or makes dead letters of them.
`dead_letters` keeps these apart from the rows of the table.
"""

__all__: list[str] = []
