"""Samplers and loaders. Each of their samples is committed exactly once per epoch, also if groups are lost, join or heal.

`core.data` decides which samples a group trains on. A commit of the step advances the position in the data, so the vote on the
step is the only agreement that is needed.
"""
