"""The group server: one per replica group, between its ranks and the lighthouse."""
