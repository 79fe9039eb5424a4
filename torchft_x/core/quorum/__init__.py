"""Pure rules of quorums: when one may form, which older ones must be followed, and where a history forks.

* `rule`: a quorum, or what is missing for one, with the reason (R6, R9).
* `open_quorums`: quorums before the present one that some members may still run.
* `history_fork`: what is lost where a new lineage begins, for people (R9b).
"""
