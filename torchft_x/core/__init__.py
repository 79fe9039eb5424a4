"""Protocol: the decisions of a lighthouse, a replica group and a rank.

This package has pure functions and small state machines: values in, values out. It has no clock, socket, thread, tensor or
log, and imports only the standard library, `torchft_x.errors` and `torchft_x.timing`. So every schedule of events can be
replayed in a test.

The packages are listed bottom up. Each imports only from those before it in the list (the table in pyproject.toml,
[tool.importlinter])::

    (files here)  shared by all sides: types, heal (sources of heals), in_doubt (resolves undecided steps),
                  cross_group_vote, fingerprint (facts that must be equal in all groups), journal, quorum (whether one
                  may form), presence (state of a supervisor's stream), decision_log (reasons of a machine's
                  decisions), memory_slot (head of a copy in memory)
    messages      events and effects of each machine
    data          deals samples out to groups, each once per epoch
    commit        decides whether a step is committed
    group         asks, quorums and deadlines of a replica group
    job           decides whether the job is done, and its exit code
    membership    known members and their losses
    admission     decides which processes may join, and whose reports count
    training      pace, saves and heals of a trainer
    lighthouse    forms quorums, grants steps to their members, takes over from the lighthouse before

A machine and its shell have a contract. The shell delivers events with the time, one after the other, and carries out
the effects that the machine returns. `core.messages` defines it precisely. Times are seconds as floats, monotonic
unless a name says ``unix``. Ids are integers that only grow. Rules (R1, ...) and invariants (I1, ...) are those of
docs/dev/design.md.

Begin reading with `types`; then `quorum` (one pure function), `commit.step` (one rank's way through a step), and
the two machines, `group.machine.Group` and `lighthouse.machine.Lighthouse`.
"""
