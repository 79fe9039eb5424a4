"""What the supervisor sees of a trainer.

* `setup`: begins and ends all of it. `shared_status`: where this rank is, in shared memory.
* `query_server`: stacks and the Flight Recorder, only when something has happened.
* `worker_server`: PyTorch's own server, for the user's tools; off by default.
"""
