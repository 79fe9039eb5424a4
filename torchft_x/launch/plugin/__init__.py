"""What TorchX finds of us: the schedulers `local_ft` and `slurm_ft`, on both of its lines.

* `scheduler`: TorchX's interface; the work is done by a keeper (launch/keeper). `logs`: a replica's output, as it is written.
* `slurm`: the same for jobs on Slurm, whose work is done in launch/slurm.
* `command`: ``torchx ft``, by which 0.7.0 learns of them. `namespace/`: the same for the nightly line.
"""
