"""Delta Lake: from the files of a `_delta_log` to change plans.

format            the format as others know it
log/              file names, listings, commit files and their actions, commit timestamps
checkpoints/      state and live files from checkpoints, in bounded memory; the `_last_checkpoint` hint
catalog/          commits ratified by a catalog: its port, and Unity Catalog
features          table features: supported, ignored or refused, and why
schema            Delta types as Arrow types
snapshot          the table's state, advanced commit by commit; retention periods from its properties
history           protocol, metadata and table id at a version
commit_plan       a commit file read, and planned by the rules of `changes`
changes           a commit and the states around it -> ChangePlan (the rules of the change data feed)
table             the `TableLog` port for Delta tables
folders           Delta tables in local folders
inspection        the profile of a table, summaries of its versions, and contradictions in its log
"""

__all__: list[str] = []
