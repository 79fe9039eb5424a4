"""Adapters for torchft's names that are more than another name of ours.

* `manager`: torchft's precedence of variables over arguments. `local_sgd`: groups that train apart begin later.
* `transports`: a timeout of zero. `futures`: deadlines for torch's futures. `rwlock`: a lock for readers or one writer.
* `streams`: the current stream of any accelerator. `work`: the handle of a managed reduction.
"""
