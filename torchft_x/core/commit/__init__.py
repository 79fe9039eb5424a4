"""Decides whether a step counts.

* `step`: one rank's way through a step, as a machine: ask for a quorum, reduce, vote, settle.
* `group_vote`: the vote of a group's ranks. One "no", or a lease that has run out, and the group does not commit (R13).
* `two_phase`: the promise of a group that its ranks are for a step (prepared, R12), and the vote among the groups.

The row of numbers by which the groups vote is `core.cross_group_vote`; what becomes of a prepared step whose outcome
nobody here knows is `core.in_doubt` (R14).
"""
