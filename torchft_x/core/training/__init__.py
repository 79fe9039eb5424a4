"""Decides how a trainer paces itself.

* `step_clock`: how long a step takes, by which grants are sized; and how long a rank waits for other groups before it
  asks who is still there (R20).
* `heal_wait`: how long the others wait for a member that copies their state: as long as the copy moves.
* `heal_retries`: when a group that can't copy the state gives up.
* `memory_checkpoint`: when a rank copies its state into memory that outlives it, and which copy a group goes on from.
* `sync_schedule`: when groups that train apart exchange what they have learned (LocalSGD, DiLoCo).
"""
