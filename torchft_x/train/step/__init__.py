"""One training step: quorum, reductions, votes, and what becomes of a step that fails.

* `step_loop`: `StepLoop`: a rank's step as five stages; begin here.
* `quorum_round`: one quorum, from asking for it until this rank holds its state. `quorum_thread`: runs it beside
  training.
* `reductions`: those of the step in hand, their handles, and the gradients with which they can be done again.
* `vote`: the votes on a step, in the group and between groups.
"""
