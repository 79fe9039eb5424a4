"""All-reduce and reduce-scatter with 8 or 4 bits per value.

* `format`: encodes blocks of values as codes with a scale. `flat_view`: several tensors as one sequence of values.
* `collectives`: the messages and their order, after a check that all members use the same format.
"""
