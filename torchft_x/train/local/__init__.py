"""LocalSGD, DiLoCo and Streaming DiLoCo, with groups of one size or of several.

* `local_sgd`, `diloco`: the classes a script uses. `inner_loop`: hooks on the inner optimizer, and the shell of
  `core.training.sync_schedule`.
* `fragments`: one fragment and its outer step. `partition`: cuts a model into fragments. `exchange`: one reduction of a
  fragment.
* `error_feedback`: carries the quantisation error to the next exchange.
* `dealt_data`: the samples of each inner step, and their commit with the exchange.
* `islands`: groups of different sizes, in which rank 0 exchanges for all ranks.
"""
