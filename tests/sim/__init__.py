"""A deterministic simulator of whole jobs: the product's state machines, without threads, sockets or real clocks.

A `World` is one cluster: a heap of events in virtual time, with all random numbers from one seed. Its nodes drive the
machines of `torchft_x.core` as the product's shells do.

* `lighthouse_node`: a lighthouse, with `book`, the true record of the members that wait there.
* `supervisor_node`: a group's supervisor, with `held`, the copies in its memory.
* `group_node`: one attempt of a group, with its group server and its `hub`, which collects the ranks' votes.
* `rank_node`: one rank, with the parts of its step: `healing`, `reduction`, `voting`.
* `peer_node`: a client of torchft.

The modules `network` (streams, latencies, partitions), `uplink` (a client's session), `collective` (process groups),
`transfer` (copies of the state) and `shared` (the directory of several lighthouses) connect the nodes.

A run is a configuration (`config`) and a schedule of faults (`faults`, `kinds`). `swarm` draws both from a seed, `soak`
repeats that for hours, and `run` replays one seed. `invariants` and `quorum_checks` check the rules and invariants of
docs/dev/design.md after each event, with the true state of all processes. `variants` are known wrong versions of core
that the checks must catch. docs/dev/simulator.md tells how to use all of it.
"""
