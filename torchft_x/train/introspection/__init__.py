"""Shows a trainer to its supervisor.

* `setup`: starts and stops the others. `shared_status`: this rank's status, in shared memory.
* `query_server`: stacks and the Flight Recorder, on request after an event; a hang, for `torchft_x chaos`.
* `worker_server`: PyTorch's own server, for the user's tools; off by default.
"""
