"""A state dict as a layout and bytes, and back. No pickle.

* `flatten`: from a state dict to its layout and its tensors. `rebuild`: the way back. `layout`: the tree, as JSON.
* `leaves`, `structured`: the closed set of values beside tensors. `memory`: the bytes of tensors, without copies.
* `blocks`: the bytes as pieces of at most 1 MiB, each with a digest. `landing`: the receiver's memory for them.
* `limits`: every limit of the transfer package.
"""
