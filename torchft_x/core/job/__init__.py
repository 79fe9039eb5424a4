"""Decisions about a job: when it is done and with which exit code, when a group's nodes start, when sidecars stop.

* `outcome`: `JobOutcome`, from what the groups' supervisors report.
* `multi_node`: `GangCoordinator`, which starts and ends attempts on all nodes of a group together.
* `kept_groups`: the file in which a job's keeper names its groups to the lighthouse.
* `sidecars`: sidecars of one job, ended with the job and never counted in its outcome.
"""
