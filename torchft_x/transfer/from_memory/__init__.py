"""Durable checkpoints from the copies that a group's supervisor holds in memory, when none of its workers is left.

* `held`: what a copy says of the checkpoint. `save`: writes it, in a process of its own.
"""
