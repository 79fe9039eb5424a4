"""Decides when a job is done and with which exit code, when the nodes of a group start, and when sidecars stop.

* `outcome`: `JobOutcome`, from what the groups' supervisors report.
* `multi_node`: `GangCoordinator`: the lives of groups over several nodes, begun and ended on all nodes together.
* `orders`: `Orders`: kill, drain and resume: may it be done, and who is told?
* `sidecars`: sidecars of one job, ended with it and never counted.
* `standalone_sidecars`: the same at a lighthouse that serves several jobs and knows none of them.
"""
