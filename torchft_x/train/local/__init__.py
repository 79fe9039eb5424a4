"""LocalSGD, DiLoCo and Streaming DiLoCo, with groups of one size or of several.

* `local_sgd`, `diloco`: what a script holds. `inner_loop`: hooks on the inner optimizer; the shell of
  `core.training.sync_schedule`.
* `fragments`: one fragment and its outer step. `partition`: a model as fragments. `exchange`: one reduction of a
  fragment.
* `flat_buffers`: memory for what is sent. `error_feedback`: what quantising left out goes into the next exchange.
* `islands`: groups of different sizes, in which rank 0 speaks for all.
"""
