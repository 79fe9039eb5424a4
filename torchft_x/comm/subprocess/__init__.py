"""Process groups in a child process, so that a communication library that hangs or dies can't affect the trainer.

* `group`: `ProcessGroupBaby` and its subclasses. `child_handle`: one child, as its parent sees it. `child_main`: the
  program of the child.
* `fork_server`, `fork_server_main`: a helper process with torch imported and one thread, which forks the children.
* `pipe`, `args_codec`: JSON messages with file descriptors. `shared_memory`: the memory through which tensors travel.
"""
