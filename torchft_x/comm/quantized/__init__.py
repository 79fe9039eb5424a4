"""All-reduce and reduce-scatter with 8 or 4 bits per value.

* `format`: blocks of values as codes with a scale. `flat_view`: several tensors as one run of values.
* `collectives`: what is sent, and in which order. `work`: the handle that drives it.
* `agree_format`: checks that all members use the same format before they reduce.
"""
