"""Durable checkpoints from a supervisor's copies in memory, when none of its workers is left.

* `held`: what a copy contains for the checkpoint. `save`: writes the checkpoint, in a process of its own.
"""
