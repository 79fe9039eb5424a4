"""What TorchX finds of us: the scheduler `local_ft`, on both of its lines.

* `scheduler`: TorchX's interface; the work is done by a keeper (launch/keeper). `logs`: a replica's output, as it is written.
* `command`: ``torchx ft``, by which 0.7.0 learns of the scheduler. `namespace/`: the same for the nightly line.
"""
