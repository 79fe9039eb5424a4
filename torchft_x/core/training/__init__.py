"""Decisions of a trainer about its own pace.

* `step_clock`: how long a step takes, by which grants are sized, and how long a rank waits for other groups before it
  asks for the next quorum (R20).
* `heal_limits`: how long the others wait for a member that copies their state, namely as long as the copy moves; when a
  group that can't copy the state gives up.
* `save_duty`: which group saves a durable checkpoint, when, and whether the job may write at its URL.
* `memory_checkpoint`: when a rank copies its state into memory that outlives it, and which copy a group resumes from.
* `sync_schedule`: when groups that train apart exchange what they have learned (LocalSGD, DiLoCo).
"""
