"""Collects what explains a hang or a death, on the supervisor's host.

* `collector`: watches the workers, and collects beside the training and the restarts.
* `probe_worker`: one worker: where it is, its stacks, or what the kernel says of it. `stalls`: does a step last too
  long?
* `dump_folders`: where the supervisors of a job put what they collect about one event.
"""
