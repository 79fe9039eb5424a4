"""Jobs on Kubernetes for the TorchX scheduler `kubernetes_ft` (launch/plugin). The pure rules are in launch/kubernetes/rules.

* `app`: builds a job's objects from a TorchX app.
* `cluster`: client of the API server. `jobs`: submits, finds, follows and cancels jobs.
* `remote`: talks to a job's lighthouse through the API server, and strikes its pods.
* `handle`: parses job handles. `commands`: ``torchft_x cancel``, ``scale`` and ``log``.
"""
