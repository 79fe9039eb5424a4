"""Process groups around other process groups, and a device mesh made of them.

* `process_groups`: for tests, for injected failures, and for FSDP2's reductions through the Manager.
* `device_mesh`: a mesh with the replica groups as one dimension.
* `reconfigure`: for scripts without a Manager.
"""
