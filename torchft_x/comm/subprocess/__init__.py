"""Process groups in a child process, so that a communication library that hangs or dies can't affect the trainer.

* `group`: `ProcessGroupBaby` and its subclasses. `child_handle`: one child, as its parent sees it. `child_main`: the
  program of the child.
* `fork_server`: a helper process with torch imported, which forks the children.
* `collective_args`: arguments as they pass the pipe. `shared_memory`: the memory through which tensors travel.
"""
