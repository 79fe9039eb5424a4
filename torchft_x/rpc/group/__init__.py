"""The group server: one per replica group, in the process of rank 0, between the ranks and the lighthouse.

* `shell`: runs `core.group.machine.Group`: its session to the lighthouse, its open calls, its clock.
* `server`: the group server's Python interface, for any thread. `service`: its gRPC interface.
* `client`: the client of ranks other than 0, with the same methods.
"""
