"""A state dict as a layout and bytes, and back. No pickle.

* `flatten`: a state dict to its layout and its tensors. `rebuild`: back. `layout`: the tree between, as JSON.
* `leaves`, `structured`: the closed set of values beside tensors. `memory`: the bytes of tensors, without copies.
* `blocks`: the bytes as pieces of at most 1 MiB, each with a digest. `landing`: where they go at the receiver.
* `limits`: every cap of this room.
"""
