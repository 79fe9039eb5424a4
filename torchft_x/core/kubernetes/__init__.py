"""A job on Kubernetes as plain values: its objects, and what its Jobs and pods say of it. Pure; dicts in, dicts out.

* `parts`: what is asked for: the replicas of a job, and how its pods shall be. `names`: of objects and labels.
* `pod`: one replica's pod. `objects`: all of a job. `rights`: which of them a person must be allowed to make and see.
* `state`: Jobs and pods in, what is known of each part and of the job out.
* `scale`: another number of groups for a job that runs.
* `merge`: a pod's overlay, merged as Kubernetes' strategic merge patch does it.
"""
