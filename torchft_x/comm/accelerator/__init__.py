"""Process groups on accelerators: NCCL for CUDA, oneCCL (XCCL) for Intel's XPU, or any made by a user's function.

* `group`: members, deadlines, aborts and errors, common to all of them. `nccl`: the two libraries.
* `from_factory`: wraps torch groups that a user's function creates.
* `stream_watch`: deadlines of collectives for which a stream waits instead of a thread.
"""
