"""Process groups on accelerators: NCCL for CUDA, oneCCL (XCCL) for Intel's XPU, or any made by a user's function.

* `group`: members, deadlines, aborts and errors of all of them. `nccl`: the two libraries.
* `from_factory`: around torch groups that somebody else's function creates.
* `stream_watch`: deadlines of collectives for which a stream waits, and no thread.
* `ipc`: CUDA tensors between a process and its child. `requirements`: what a machine must have.
"""
