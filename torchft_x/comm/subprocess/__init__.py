"""Process groups in a child process: a communication library that hangs or dies there can't touch the trainer.

* `group`: `ProcessGroupBaby` and its kinds. `child_handle`: one child, as its parent sees it. `child_main`: what runs
  in it.
* `fork_server`, `fork_server_main`: a helper with torch imported and one thread, which forks the children.
* `pipe`, `args_codec`: JSON messages with file descriptors. `shared_memory`: where tensors travel.
"""
