"""One training step: quorum, reductions, votes, and the resolution of a step that fails.

* `step_loop`: `StepLoop` runs a rank's step in five stages; begin here.
* `quorum_round`: one quorum, from asking for it until this rank holds its state, and what it means for this rank.
* `step_data`: the samples of the current step, and the part of them that the group trains on.
* `reductions`: the current step's reductions, their handles, and the gradients with which they can be repeated.
* `vote`: the votes on a step, in the group and between groups.
"""
