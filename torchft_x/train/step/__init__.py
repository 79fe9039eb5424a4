"""One training step: quorum, reductions, votes, and what becomes of a step that fails.

* `step_loop`: `StepLoop`: the way of a rank through its steps; begin here.
* `quorum_round`: one quorum, from asking for it until this rank holds its state. `quorum_thread`: runs it beside
  training.
* `vote`: the votes on a step, in the group and between groups.
"""
