"""Samplers and loaders. Each of their samples is committed exactly once per epoch, also if groups are lost, join or heal.

`core.data` decides which samples a group trains on. A commit of the step advances the position in the data, so the vote
on the step is the only agreement that is needed.

* `sampler`: deals samples. `streams`: deals items of logical streams. `evaluator`: evaluates a second data set.
* `loader`: loads a step's samples beside the training. `prefetch`: loads predicted batches ahead.
"""
