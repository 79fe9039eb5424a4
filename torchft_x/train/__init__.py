"""The training side: the Manager, the model wrappers, and the loops. See docs/design.md."""
