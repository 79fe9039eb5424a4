"""Checkpoints that outlive the job, as a script uses them. What is saved by whom: `core.training.save_duty`; the form on
the storage: `transfer.durable`.

* `checkpoint`: what a script holds. `parts`: the state of models, optimizers and others, gathered and put back.
* `saving`, `claiming`: the two threads beside the training. `in_memory`: what the copies in a supervisor's memory hold for it.
"""
