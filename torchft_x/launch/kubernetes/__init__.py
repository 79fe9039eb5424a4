"""Jobs on Kubernetes as TorchX's scheduler `kubernetes_ft` (launch/plugin) makes and sees them; the rules are in core/kubernetes.

* `app`: from a TorchX app to the parts of a job. `options`: what is asked of the scheduler.
* `cluster`: the cluster, by the official client, whose refusals become sentences. `jobs`: make, see, follow and end a job.
"""
