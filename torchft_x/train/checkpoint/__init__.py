"""Checkpoints that outlive the job. `core.training.save_duty` decides who saves, `transfer.durable` defines the format.

* `checkpoint`: the class a script uses. `parts`: gathers and loads the state of models, optimizers and other parts.
* `saving`, `claiming`: the two threads beside the training.
"""
