"""The group server: one per replica group, in the process of rank 0, between the ranks and the lighthouse.

* `shell`: runs `core.group.machine.Group`: its session to the lighthouse, its open calls, its clock.
* `server`: what a program holds: make, ask, close, from any thread. `service`: what it offers over the network.
* `client`: what a rank talks to: over a socket, or in the server's own process the shell itself.
* `pause_clock`: how much longer a question may take for a planned pause.
* `liveness_socket`: shows that a process which has left still evaluates or saves (R21).
"""
