"""Launches jobs: from a TorchX component to supervised processes.

`job` renders a job as a TorchX app, and `schedulers` adjusts the scheduler's request. In the container, a supervisor
(`supervisor`) starts one attempt of its group after the other, and collects evidence of deaths and hangs (`workers`,
`process`).

* `cli`: the command lines of a job's processes. `run_commands`: those about existing runs.
* `demo`: ``torchft_x demo``. `demo_train`: the script that it trains.
"""
