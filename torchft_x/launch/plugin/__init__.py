"""TorchX schedulers `local_ft`, `slurm_ft` and `kubernetes_ft`, for TorchX 0.7.0 and its nightly line.

* `scheduler`: ``local_ft``, whose jobs are run by a keeper (launch/keeper).
* `slurm`: ``slurm_ft``, over launch/slurm. `kubernetes`: ``kubernetes_ft``, over launch/kubernetes.
* `common`: their common parts: errors as sentences, a job's status as TorchX's values, followed log files.
* `command`: ``torchx ft``, which registers the schedulers on 0.7.0. `namespace/`: registers them on the nightly line.
"""
