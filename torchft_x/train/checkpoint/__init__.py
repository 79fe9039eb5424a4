"""Checkpoints that outlive the job. `core.training.save_duty` decides which group saves, `transfer.durable` defines the
form on the storage.

* `checkpoint`: the class a script uses. `parts`: gathers and loads the state of models, optimizers and other parts.
* `saving`, `claiming`: the two threads beside the training. `in_memory`: the description of a checkpoint in the copies
  that a supervisor holds in memory.
"""
