"""Decides whose words count: whether a member may join, and whether its job is already finished.

* `claims`: what a member says of its state and its quorums, where the others can contradict it (R1, R22).
* `compatibility`: whether its fingerprint fits those of the others; otherwise it is refused with both sides named.
* `finished_job`: whether the job it comes to has ended well, or is just being finished (R21).
"""
