"""A job on Kubernetes as plain values: renders its objects, derives its state from Jobs and pods. Pure, on dicts.

* `parts`: the input: the replicas of a job, and the settings of their pods. `names`: names of objects and labels.
* `pod`: one replica's pod. `objects`: all objects of a job.
* `state`: states of the parts and of the job, from Jobs and pods.
* `scale`: changes the number of groups of a running job.
"""
