"""Decides whether a step counts.

* `step`: one rank's way through a step, as a machine: ask for a quorum, reduce, vote, conclude.
* `two_phase`: the vote of a group's ranks: one "no", or a lease that has run out, and the group does not commit (R13).
  The promise of a group that its ranks are for a step (prepared, R12), and what the vote among the groups comes to.
* `slot_check`: which slot several groups compute and compare, and which group is faulty if they differ.
* `values`: the values of a rank's step: what it asks and votes with, and how the step ended.

The row of numbers by which the groups vote is `core.cross_group_vote`; what becomes of a prepared step whose outcome
nobody here knows is `core.in_doubt` (R14).
"""
