"""What of torchft's names is more than another name of ours. Each file is one of its modules.

* `manager`: arguments and variables as torchft weighs them. `local_sgd`: groups that train apart begin later.
* `transports`: a timeout of zero. `futures`: deadlines for torch's futures. `rwlock`: readers or a writer.
* `streams`: the current stream, whatever the accelerator.
"""
