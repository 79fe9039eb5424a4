"""Decides which members' claims are believed, which members may join, and whether their job is already finished.

* `claims`: what a member says of its state and its quorums, where the others can contradict it (R1, R22).
* `compatibility`: whether its fingerprint fits those of the others; a refusal names both sides.
* `finished_job`: whether the job that a member comes to has ended well, or is being finished (R21).
"""
