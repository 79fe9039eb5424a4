"""The protocol: decisions of a lighthouse, a replica group and a rank.

This room has pure functions and small machines: values in, values out. It has no clock, socket, thread, tensor or log
and imports only the standard library, so every schedule of events can be replayed in a test.

The packages are listed bottom up. Each imports only from those before it in the list (the table in pyproject.toml,
[tool.importlinter])::

    (files here)  shared by all sides: types, heal (who copies from whom), in_doubt (what became of an undecided step),
                  cross_group_vote, fingerprint (what must be alike in all groups), journal, presence (is a supervisor
                  here, since when away, is it done?), decisions (why a machine did that)
    messages      what goes into each machine, and what comes out
    commit        does this step count?
    group         what does a replica group ask for, what does it hold, how long does it wait?
    job           is the job done, and with which exit code?
    quorum        may a quorum form, and which older ones must it follow?
    membership    who is a member, and who is dead?
    admission     whose words count, and who may join?
    restart       when may a lighthouse that has just started form a quorum?
    training      how does a trainer pace itself?
    slurm         which parts of a job does Slurm run, and which are started again?
    kubernetes    what does a job on Kubernetes consist of, and how is it?
    lighthouse    who trains together, and how far may they run?

A machine and its shell have a contract: the shell delivers events with the time, one after the other, and carries out
the effects that the machine returns. `core.messages` defines it precisely. Times are seconds as floats, monotonic
unless a name says ``unix``; ids are integers that only grow. Rules (R1, ...) and invariants (I1, ...) are those of
docs/dev/design.md.

Begin reading with `types`; then `quorum.rule` (one pure function), `commit.step` (one rank's way through a step), and
the two machines, `group.machine.Group` and `lighthouse.machine.Lighthouse`.
"""
