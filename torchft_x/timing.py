"""Times that are measured against each other: silences, leases, graces and patience, all in seconds.

Everything in `torchft_x` that waits for such a time reads it from `TIMING`. Tests on slow machines stretch all of them by one
factor (`TORCHFT_X_TIME_SCALE`), so that they keep their order.

Each line holds, at any scale; `tests/unit/test_timing.py` evaluates them:

    smaller                          larger                        because
    -------------------------------  ----------------------------  -----------------------------------------------------------
    stop_report                   <  silence_stopped               a stop is reported before it counts as a loss
    stop_gap                      <  stop_report                   one late look alone reports no stop
    silence_stopped               <= silence_host                  a stopped worker is found no later than a lost host
    silence_host                  <  silence_alone                 a silent supervisor adds evidence
    silence_alone                 <  silence_busy                  a supervisor that sees the process run argues against a loss
    silence_busy                  <  hang_quiet + hang_idle        members are left out before their processes are ended
    reconnect_first               <  reconnect_near                pauses between connects grow
    reconnect_near                <  reconnect_last                pauses between connects grow
    reconnect_last                <  promised                      a group has steps left until it has tried again
    reconnect_last                <  gone_grace                    a supervisor that reconnects is not lost
    reconnect_last                <  comes_back                    a lighthouse is tried again before it is left
    welcome                       <  hello                         the client gives up a connect first
    return_within                 <  give_up_after                 a group that restarts is back before its state is given up
    lease_margin                  <  lease                         a margin is a small part
    lease + lease_margin          <  give_up_after                 nobody commits any more when its state is given up
    leased_ahead                  <  lease                         the journal is written less often than leases are sent
    hello_grace                   <  lease                         waiting for hellos is shorter than waiting for a lease
    failover_look                 <  failover_renew                a standby sees each renewal
    failover_look                 <  failover_silence              more than one look must fail before a person is told
    3 * failover_renew            <  failover_ttl                  two lost renewals end no lease
    failover_ttl + failover_margin < lease                         groups train on during a failover
    failover_ttl + failover_margin < deserted_after                supervisors find the new holder before an old one ends
    deserted_after                <  lighthouse_away               ranks still wait when another lighthouse takes over
    takeover                      <  new_lineage                   survivors of a quorum are waited for first
    new_lineage                   <  one_wait                      asks of one wait are counted together
    lighthouse_back               <  takeover                      a lighthouse that is back says soon what it waits for
    ask_moment                    <  lateness                      to ask takes less than to be late
    lateness + ask_moment         <  hang_quiet                    a late group is left out before it is examined
    peer_patience                 <  first_ask                     a first step loads and compiles
    late_penalty                  <  late_penalty_most             penalties grow
    late_penalty                  <  late_again                    who is late after a penalty gets a longer one
    finish_grace                  <  finish_forgotten              a group that is held is not forgotten meanwhile
    gone_grace                    <  arrive                        a supervisor that was here is missed sooner
    silence_host                  <  gone_grace                    the others train on before a group counts as lost
    last_acts                     <  stop_grace                    a supervisor has time left to kill its workers
    stop_grace + last_acts        <  notice                        workers are killed by their supervisor, not from outside
    notice                        <  keeper_grace                  a supervisor ends by itself before its keeper kills it
    flush                         <= last_acts                     last reports are part of the last acts
    flush_stopped                 <= flush                         nobody may be there to read them
    lighthouse_flush              <  keeper_grace_lighthouse       a lighthouse ends by itself before its keeper kills it
    lighthouse_flush              <  lighthouse_grace              a lighthouse ends by itself before its supervisor kills it
    keeper_hurry                  <  keeper_grace                  a second request shortens the grace
    keeper_grace + keeper_grace_lighthouse < launcher_end          a keeper ends its job before its launcher gives up
    launcher_end                  <= cancel_end                    a person waits at least as long as a launcher
    warm_after                    <  life_quick                    a warm parent is ready before a life counts as long
    dump_last_words               <  dump_lost                     a group's own supervisor writes first
    dump_lost                     <  dump_others                   every supervisor adds its part before a dump is read
    dump_answer                   <  dump_others                   every worker is asked before a dump is read
    hang_idle                     <  hang_idle_at_first            a first step may wait long
    stall_usual                   <  hang_quiet + hang_idle        stacks of a stalled step are taken before its process ends
    stall_usual                   <  stall_apart                   inner steps hold nobody up
    silence_host                  <  watch_silent                  the others train on before a node is examined
    watch_near                    <  watch_silent                  near is no silence
    watch_each + watch_answer     <  watch_stale                   one slow answer changes no turn
    2 * claim_beat                <  claim_watch                   one late sign of life loses no claim
    3 * run_beat                  <  run_watch                     two late renewals lose no run directory
    notice                        <  run_ending                    a job that is about to end is waited for
    meet                          <  connect                       members without names still connect
    slow_connect                  <  lateness                      a rank that waits for one that connects gives up later
    slow_connect + answers        <  connect                       a broken link is told of by the same attempt

User options are not part of this: `timeout`, `quorum_timeout`, `connect_timeout` and what else has a flag or a variable keep
their values at every scale. `lateness` is cut to a Manager's `timeout`, `new_lineage` and `takeover` to a lighthouse's
`join_timeout`; an explicit heartbeat timeout takes the place of the four silences.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from torchft_x import env


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times that are measured against each other, in seconds."""

    # --- silence: when a member is lost (core.membership.failure_detector) -------------------------------------------

    silence_alone: float = 5.0  # of a member without a supervisor
    silence_host: float = 1.5  # of a member and of its supervisor; pings of both are parts of it
    silence_stopped: float = 1.5  # for which a process of a member may be stopped, by its supervisor's report
    silence_busy: float = 10.0  # of a member whose supervisor says that it runs
    stop_report: float = 1.0  # after which a supervisor reports a stopped worker
    stop_gap: float = 0.5  # between two looks at workers that a stop is taken to have lasted through

    # --- sessions with the lighthouse (rpc, core.group) --------------------------------------------------------------

    welcome: float = 5.0  # from a connect to the lighthouse's welcome
    hello: float = 10.0  # from an accepted stream to its hello
    seek: float = 2.0  # to look up which lighthouses the job has
    reconnect_first: float = 0.05  # pause before the first connect after a session
    reconnect_near: float = 0.2  # longest pause during `reconnect_near_for`
    reconnect_near_for: float = 5.0  # after the end of a session
    reconnect_last: float = 1.0  # longest pause after that
    comes_back: float = 3.0  # for which a lighthouse is tried again before the next one is
    promised: float = 1.5  # worth of steps that a group without a session grants itself; covers a pause and a connect
    promise_again: float = 60.0  # between two such promises in one quorum; newcomers wait for their end
    lighthouse_away: float = 180.0  # until a rank gives up without a lighthouse; a scheduler replaces a host meanwhile
    lighthouse_back: float = 1.0  # for a lighthouse that is back to say what it waits for

    # --- leases and grants (core.membership, core.restart) -----------------------------------------------------------

    lease: float = 120.0  # for which a group may commit without the lighthouse
    lease_margin: float = 1.0  # added where the end of a lease is waited for, as clocks do not run alike
    leased_ahead: float = 1.0  # that the journal's end of leases lies ahead of those sent
    give_up_after: float = (
        300.0  # from the last lease of a member whose end nothing proves, until its state is given up
    )
    hello_grace: float = 1.0  # for which a fresh lighthouse waits for groups that run already
    return_within: float = 10.0  # in which a lost group is mostly back; grants are small meanwhile
    failover_ttl: float = 5.0  # for which one of several lighthouses may serve after a renewal of its lease
    failover_renew: float = 1.0  # between two renewals
    failover_margin: float = 1.0  # that a standby waits beyond `failover_ttl`
    failover_look: float = 0.25  # between two looks of a standby
    failover_silence: float = 3.0  # without an answer of the register, until a person is told

    # --- quorums (core.quorum, core.lighthouse, core.admission) ------------------------------------------------------

    new_lineage: float = 30.0  # from the first ask, for groups that are here and start, before a new lineage begins
    one_wait: float = 120.0  # between two asks of one wait; longer than a rank's pause between two calls
    takeover: float = 5.0  # for supervisors of a quorum found in the journal, before a new lineage begins
    probe_again: float = 1.0  # between two probes of a member that is away; only its end lets a new lineage begin
    finish_grace: float = 10.0  # for which a group of a finished job is held for one that finished it
    finish_forgotten: float = 60.0  # after which a held group that asks again is held anew
    finish_patience: float = 60.0  # that waiting calls are prolonged while a finished process ends

    # --- stragglers (core.lighthouse.stragglers, core.training.step_clock) -------------------------------------------

    lateness: float = 2.0  # another group may come later at least; two of gloo's retransmissions fit in
    ask_moment: float = 0.5  # for the others to ask when a wait for them has run out
    peer_patience: float = 5.0  # of a member that does not say how long it waits
    first_ask: float = 60.0  # from a job's first ask, for members that import and compile before theirs
    late_again: float = 60.0  # between two times that a group is late which count as a series
    late_penalty: float = 10.0  # for which the second of a series keeps a group out, doubled each time
    late_penalty_most: float = 300.0  # at most

    # --- presence of supervisors and sidecars (core.job) -------------------------------------------------------------

    gone_grace: float = 3.0  # for which a supervisor's stream may be away before its group counts as lost
    arrive: float = 300.0  # for all supervisors to come, from the first event
    deserted_after: float = 15.0  # without any supervisor, until one of several lighthouses ends
    sidecar_settle: float = 3.0  # after the last group's end, until its sidecars end
    sidecar_missing: float = 300.0  # the same if a group went without a report
    sidecar_patience: float = 600.0  # of a sidecar without a lighthouse
    number_wait: float = 5.0  # for the lighthouse's number of a group's first life

    # --- ends of processes (launch, rpc) -----------------------------------------------------------------------------

    stop_grace: float = 5.0  # between SIGTERM and SIGKILL for workers
    drain_grace: float = 300.0  # the same when a group is drained, which ends at a step boundary and may save
    last_acts: float = 2.0  # of a supervisor: to kill what is left, report and end
    notice: float = (
        10.0  # after which a local launcher kills what is left; a worker that saves gets all but `last_acts`
    )
    flush: float = 2.0  # for a supervisor's last reports
    flush_stopped: float = 0.5  # the same if it was told to stop: the lighthouse mostly was, too
    leave: float = 1.0  # for the lighthouse to read a group's leave
    leave_wait: float = 5.0  # that rank 0 keeps the group server for ranks that read their last vote
    lighthouse_flush: float = 1.0  # for the lighthouse's last words to supervisors
    lighthouse_grace: float = 15.0  # between SIGTERM and SIGKILL for a lighthouse under its own supervisor
    keeper_grace: float = 11.0  # between SIGTERM and SIGKILL for supervisors under a keeper
    keeper_grace_lighthouse: float = 4.0  # the same for lighthouses, which go last
    keeper_hurry: float = 1.5  # what is left of both after a second request
    keeper_last_words: float = 10.0  # for processes to end by themselves when the job is over
    launcher_begin: float = 30.0  # for a keeper to start a job's roles
    launcher_end: float = 25.0  # for a keeper to end them
    cancel_end: float = 30.0  # for a job to end when a person cancels it
    keeper_answer: float = 20.0  # for a keeper to carry out a request, ends of groups included

    # --- starts of processes (launch) --------------------------------------------------------------------------------

    life_quick: float = 30.0  # a shorter life without a step counts towards a crash loop
    warm_after: float = 5.0  # of a life, before its warm parent imports for the next one
    warm_imports: float = 120.0  # for a warm parent to be ready for a first life, from a slow disk as well
    stand_by_pause: float = 0.5  # before a lighthouse that lost its lease starts again as a standby
    port_wait: float = 1.0  # for the port of a lighthouse that dies with its keeper
    find_given: float = 10.0  # for a lighthouse whose address is given to a local job: it should run already
    find_local: float = 30.0  # for a lighthouse that the same local job starts
    nodes_wait: float = 60.0  # for other nodes of a group in a local job; nobody restarts their supervisors

    # --- evidence of hangs, and dumps (launch.process.hangs, launch.postmortem) --------------------------------------

    hang_quiet: float = 3.0  # without a step, until a group's processes are examined
    hang_idle: float = 15.0  # for which evidence of a hang must last
    hang_idle_at_first: float = 300.0  # the same before the first commit, or while a thread polls for a file or a lock
    stall_usual: float = 10.0  # that a step may last at least before it counts as stalled
    stall_apart: float = 60.0  # the same for an inner step of a group that trains apart
    dump_answer: float = 2.0  # of one worker to one question
    dump_last_words: float = 0.3  # of all ranks of a group that is about to be killed
    dump_lost: float = 2.5  # for a lost group's own supervisor to make its folder
    dump_others: float = 4.0  # for all supervisors to add their parts to a folder

    # --- watchers of a Slurm job (core.slurm, launch.slurm.watch) ----------------------------------------------------

    watch_each: float = 1.0  # between two looks at a job
    watch_quiet: float = 15.0  # between two questions to Slurm while all groups run and are heard
    watch_answer: float = 1.5  # for a lighthouse's answer
    watch_stale: float = 3.5  # for which a note may stand still before another watcher takes the turn
    watch_silent: float = 3.0  # of a supervisor, until its node is examined
    watch_near: float = 2.0  # a supervisor heard from within it counts as present
    watch_young: float = 15.0  # until a lighthouse has heard from everybody
    watch_settle: float = 3.0  # after a part's end, for the lighthouse's knowledge of it

    # --- claims of a checkpoint's URL (core.training.save_duty) ------------------------------------------------------

    claim_beat: float = 5.0  # between two signs of life of a job at its URL
    claim_watch: float = 15.0  # without one, until another job takes the URL

    # --- claims of a run directory (launch.job.run_claim) ------------------------------------------------------------

    run_beat: float = 2.0  # between two looks of a role, which renews its job's claim if nobody else has
    run_watch: float = 8.0  # without a renewal, until another job may take a claim that was written on another host
    run_ending: float = 12.0  # for the roles of a local job to end after their launcher

    # --- connects among members, and margins beyond a deadline that somebody else should meet first -------------------

    connect: float = 10.0  # for members of a new quorum to connect; after it the next quorum is a better try
    slow_connect: float = 1.0  # after which a member that failed to connect is asked which others answer it
    answers: float = 0.5  # for the others' hosts to answer then
    meet: float = 2.0  # for members to publish their names before they connect
    early_answer: float = 0.1  # before the deadline of a call that names no other, at most a twentieth of the call
    late_answer: float = 1.0  # beyond a call's own deadline, until gRPC's
    late_loop: float = 5.0  # for the group server's loop to take a call back
    late_store: float = 1.0  # beyond a wait in the store, for its answer
    late_gloo: float = 1.0  # beyond the timeout, for gloo to give up and the store to name who was missing
    late_accelerator: float = 0.5  # the same for a connecting thread
    late_child: float = 1.0  # the same for the child of a process group
    late_vote: float = 1.0  # beyond rank 0's own deadlines, for its vote
    late_round: float = 5.0  # beyond a quorum's and a heal's own deadlines, for their thread

    def scaled(self, factor: float) -> Timing:
        """Return these times, each multiplied by `factor`."""
        return Timing(**{field.name: factor * getattr(self, field.name) for field in fields(self)})


TIMING = Timing().scaled(env.time_scale())
"""Times of this process. The scale is 1 except in tests."""
