"""The group server: one per replica group, in the process of rank 0, between the ranks and the lighthouse.

* `shell`: runs `core.group.machine.Group`: its session to the lighthouse, its open calls, its clock.
* `server`: the group server's Python interface, for any thread. `service`: its gRPC interface.
* `client`: a rank's client of the group server: over a socket, or, in the server's own process, calls of the shell.
* `liveness_socket`: shows that a process which has left still evaluates or saves (R21).
"""
