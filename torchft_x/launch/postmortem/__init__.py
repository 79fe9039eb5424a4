"""Collects evidence of a hang or a death, on the supervisor's host.

* `collector`: watches the workers, and collects without delaying the training and the restarts.
* `probe_worker`: reads one worker's status and stacks, or the kernel's view of it.
"""
