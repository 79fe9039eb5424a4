"""Copies state between groups.

* `state_exchange`: offers our state to those that are behind, and fetches theirs when we are (R17).
* `overseer`: looks after a copy that others make of our state: they are waited for while it moves.
* `own_copy`: the copies that its supervisor holds in memory, made between two steps, and what a life begins with.
* `rehearsal`: a newcomer's first step, made before it asks for a quorum, and dropped.
"""
