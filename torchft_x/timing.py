"""Times that depend on each other: silences, leases, grace periods and patience, all in seconds.

All code of `torchft_x` that waits for such a time reads it from `TIMING`. Tests on slow machines multiply all of them by one
factor (`TORCHFT_X_TIME_SCALE`), so that they keep their order.

Each of these inequalities holds at any scale. `tests/unit/test_timing.py` evaluates them.

    smaller                          larger                        because
    -------------------------------  ----------------------------  -----------------------------------------------------------
    stop_report                   <  silence_stopped               a stop is reported before it counts as a loss
    stop_gap                      <  stop_report                   one late poll alone reports no stop
    silence_stopped               <= silence_host                  a stopped worker is found no later than a lost host
    silence_host                  <  silence_alone                 a silent supervisor adds evidence
    silence_alone                 <  silence_busy                  a supervisor that sees the process run argues against a loss
    silence_busy                  <  hang_quiet + hang_idle        members are evicted before their processes are killed
    reconnect_first               <  reconnect_near                pauses between connects grow
    reconnect_near                <  reconnect_last                pauses between connects grow
    reconnect_last                <  promised                      a group has steps left until it has retried
    reconnect_last                <  gone_grace                    a supervisor that reconnects is not lost
    welcome                       <  hello                         the client gives up a connect first
    return_within                 <  give_up_after                 a group that restarts is back before its state is given up
    lease_margin                  <  lease                         a margin is a small part
    lease + lease_margin          <  give_up_after                 no group commits any more when its state is given up
    leased_ahead                  <  lease                         the journal is written less often than leases are sent
    hello_grace                   <  lease                         waiting for hellos is shorter than waiting for a lease
    failover_look                 <  failover_renew                a standby sees each renewal
    failover_look                 <  failover_silence              more than one poll must fail before it is reported
    3 * failover_renew            <  failover_ttl                  two lost renewals do not end a lease
    failover_ttl + failover_margin < lease                         groups train on during a failover
    failover_ttl + failover_margin < reconnect_near_for            groups come soon after a failover
    failover_ttl + failover_margin < deserted_after                supervisors find the new holder before an old one ends
    deserted_after                <  lighthouse_away               ranks still wait when another lighthouse takes over
    takeover                      <  new_lineage                   survivors of a quorum have precedence
    new_lineage                   <  one_wait                      asks of one wait are counted together
    ask_moment                    <  lateness                      an ask takes less time than a lateness
    lateness + ask_moment         <  hang_quiet                    a late group is evicted before it is examined
    peer_patience                 <  first_ask                     a first step loads and compiles
    late_penalty                  <  late_penalty_most             penalties grow
    late_penalty                  <  late_again                    a group that is late after a penalty gets a longer one
    finish_grace                  <  finish_forgotten              a group that is held is not forgotten meanwhile
    gone_grace                    <  arrive                        a supervisor that was here is missed sooner
    silence_host                  <  gone_grace                    the others resume training before a group counts as lost
    last_acts                     <  stop_grace                    a supervisor has time left to kill its workers
    stop_grace + last_acts        <  notice                        workers are killed by their supervisor, not from outside
    notice                        <  keeper_grace                  a supervisor ends by itself before its keeper kills it
    flush                         <= last_acts                     last reports are part of the last acts
    flush_stopped                 <= flush                         no lighthouse may be left to read them
    lighthouse_flush              <  keeper_grace_lighthouse       a lighthouse ends by itself before its keeper kills it
    lighthouse_flush              <  lighthouse_grace              a lighthouse ends by itself before its supervisor kills it
    keeper_hurry                  <  keeper_grace                  a second request shortens the grace
    keeper_grace + keeper_grace_lighthouse < launcher_end          a keeper ends its job before its launcher gives up
    launcher_end                  <= cancel_end                    a person's command waits at least as long as a launcher
    warm_after                    <  attempt_quick                 it is ready before an attempt counts as long
    dump_answer                   <  dump_others                   every worker is asked before a dump is read
    hang_idle                     <  hang_idle_at_first            a first step may wait long
    stall_usual                   <  hang_quiet + hang_idle        stacks of a stalled step are taken before its process ends
    stall_usual                   <  stall_apart                   inner steps delay no other group
    silence_host                  <  watch_silent                  the others resume training before a node is examined
    watch_near                    <  watch_silent                  a near supervisor is not silent
    watch_each + watch_answer     <  watch_stale                   one slow answer does not change the turn
    2 * claim_beat                <  claim_watch                   one late renewal does not lose a claim
    3 * run_beat                  <  run_watch                     two late renewals do not lose a run directory
    notice                        <  run_ending                    a job that is about to end is waited for
    meet                          <  connect                       members without names still connect
    slow_connect                  <  lateness                      a rank that waits for one that connects gives up later
    slow_connect + answers        <  connect                       a broken link is reported by the same attempt

User options are not scaled: `timeout`, `quorum_timeout`, `connect_timeout` and all other times with a flag or a variable.
A Manager's `timeout` limits a wait of `lateness`, and its `straggler_timeout` replaces it. A lighthouse's `join_timeout`
limits `new_lineage` and `takeover`, and its explicit heartbeat timeout replaces the four silences.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from torchft_x import env

POLL_FAST = 0.02
"""Seconds between two checks of something in this process or on its connections."""
POLL = 0.1
"""Seconds between two checks of a file, a lock or another process."""
POLL_SLOW = 1.0
"""Seconds between two checks of a cluster, or of what rarely changes."""
CONNECT = 2.0
"""Seconds for a connect by a command or an order, and for a new connection's greeting."""
ANSWER = 5.0
"""Seconds for an answer to a command or an order, for a request, and for one more source of a state."""
PATIENCE = 10.0
"""Seconds for a lock, the end of a thread or process, or a peer's next bytes, all of which take milliseconds unless the
machine is busy."""
TOOL = 30.0
"""Seconds for a tool of the system that asks a daemon: Slurm's commands."""
COLD_IMPORT = 90.0
"""Seconds for a new process to import torch from a slow disk."""
SAVE = 600.0
"""Seconds for a durable checkpoint, including the wait for the shards of other ranks."""
LONGEST_WAIT = 3600.0
"""Seconds, at most, that a group waits for others that are known to come: a host is replaced, or they train apart."""
RECENT = 60.0
"""Seconds after its last sign for which an event or a run counts as going on."""
LOG_AFTER = 5.0
"""Seconds of a wait until the log names its reason."""
LOG_AGAIN = 60.0
"""Seconds between two log lines about the same trouble."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times that depend on each other, in seconds."""

    # --- silence: when a member is lost (core.membership.failure_detector) -------------------------------------------

    silence_alone: float = 5.0  # limit for a member without a supervisor
    silence_host: float = 1.5  # limit for a member and its supervisor; pings of both are parts of it
    silence_stopped: float = 1.5  # time for which a member's process may be stopped, by its supervisor's report
    silence_busy: float = 10.0  # limit for a member whose supervisor reports that its process runs
    stop_report: float = 1.0  # time after which a supervisor reports a stopped worker
    stop_gap: float = 0.5  # longest gap between two polls of workers through which a stop is assumed to last

    # --- sessions with the lighthouse (rpc, core.group) --------------------------------------------------------------

    welcome: float = 5.0  # from a connect to the lighthouse's welcome
    hello: float = 10.0  # from an accepted stream to its hello
    seek: float = 2.0  # to look up the job's lighthouses
    reconnect_first: float = 0.05  # pause before the first connect after a session
    reconnect_near: float = 0.2  # longest pause during `reconnect_near_for`
    reconnect_near_for: float = 8.0  # after the end of a session; another lighthouse has taken over by then
    reconnect_last: float = 1.0  # longest pause after `reconnect_near_for`
    promised: float = 1.5  # time whose steps a group without a session grants itself; covers a pause and a connect
    promise_again: float = 60.0  # between two such promises in one quorum; newcomers wait for their end
    lighthouse_away: float = 180.0  # until a rank gives up without a lighthouse, whose host may be replaced meanwhile

    # --- leases and grants (core.membership, core.lighthouse) --------------------------------------------------------

    lease: float = 120.0  # time for which a group may commit without the lighthouse
    lease_margin: float = 1.0  # added to the wait for the end of a lease, because clocks differ in rate
    leased_ahead: float = 1.0  # by which the journal's end of leases is later than the end of the sent ones
    give_up_after: float = 300.0  # from the last lease of a member whose end is not proven, until its state is given up
    hello_grace: float = 1.0  # time for which a fresh lighthouse waits for groups that run already
    return_within: float = 10.0  # time in which a lost group usually returns; grants are small meanwhile
    failover_ttl: float = 5.0  # time for which one of several lighthouses may serve after a renewal of its lease
    failover_renew: float = 1.0  # between two renewals
    failover_margin: float = 1.0  # wait of a standby beyond `failover_ttl`
    failover_look: float = 0.25  # between two polls of a standby
    failover_silence: float = 3.0  # without an answer of the lease's register, until it is reported

    # --- quorums (core.quorum, core.lighthouse, core.admission) ------------------------------------------------------

    new_lineage: float = 30.0  # from the first ask, for groups that are here and start, before a new lineage begins
    one_wait: float = 120.0  # longest gap between two asks of one wait; longer than a rank's pause between two calls
    takeover: float = 5.0  # for supervisors of a quorum found in the journal, before a new lineage begins
    probe_again: float = 1.0  # between two probes of an absent member; only its end lets a new lineage begin
    finish_grace: float = 10.0  # time for which a group of a finished job is held for one that finished it
    finish_forgotten: float = 60.0  # time after which a held group that asks again is held anew

    # --- stragglers (core.lighthouse.waiting, core.training.step_clock) -------------------------------------------

    lateness: float = 2.0  # least time by which another group may be late; two of gloo's retransmissions fit in
    ask_moment: float = 0.5  # for the others to ask after a wait for them has expired
    peer_patience: float = 5.0  # assumed patience of a member that does not report its own
    first_ask: float = 60.0  # from a job's first ask, for members that still import and compile
    late_again: float = 60.0  # longest gap between two latenesses of a group that count as a series
    late_penalty: float = 10.0  # exclusion of a group after the second of a series, doubled each time
    late_penalty_most: float = 300.0  # longest exclusion

    # --- presence of supervisors and sidecars (core.job) -------------------------------------------------------------

    gone_grace: float = 3.0  # time for which a supervisor's stream may be away before its group counts as lost
    arrive: float = 300.0  # for all supervisors to come, from the first event
    deserted_after: float = 15.0  # without any supervisor, until one of several lighthouses ends
    sidecar_patience: float = 600.0  # time for which a sidecar waits without a lighthouse

    # --- ends of processes (launch, rpc) -----------------------------------------------------------------------------

    stop_grace: float = 5.0  # between SIGTERM and SIGKILL for workers
    drain_grace: float = 300.0  # like `stop_grace`, for a drained group, which ends at a step boundary and may save
    last_acts: float = 2.0  # for a supervisor to kill its processes, report and end
    notice: float = 10.0  # until a local launcher kills what is left; a worker that saves gets all but `last_acts`
    flush: float = 2.0  # for a supervisor's last reports
    flush_stopped: float = 0.5  # for these reports if it was ordered to stop: usually the lighthouse was, too
    leave: float = 1.0  # for the lighthouse to read a group's leave
    leave_wait: float = 5.0  # time for which rank 0 keeps the group server for ranks that read their last vote
    lighthouse_flush: float = 1.0  # for the lighthouse's last messages to supervisors
    lighthouse_grace: float = 15.0  # between SIGTERM and SIGKILL for a lighthouse under its own supervisor
    keeper_grace: float = 11.0  # between SIGTERM and SIGKILL for supervisors under a keeper
    keeper_grace_lighthouse: float = 4.0  # between SIGTERM and SIGKILL for lighthouses under a keeper, which end last
    keeper_hurry: float = 1.5  # rest of both grace periods after a second request
    keeper_last_words: float = 10.0  # for processes to end by themselves when the job is over
    launcher_begin: float = 30.0  # for a keeper to start a job's roles
    launcher_end: float = 25.0  # for a keeper to end them
    cancel_end: float = 30.0  # for a job to end when a person cancels it
    keeper_answer: float = 20.0  # for a keeper to carry out a request, ends of groups included

    # --- starts of processes (launch) --------------------------------------------------------------------------------

    attempt_quick: float = 30.0  # a shorter attempt without a step counts towards a crash loop
    warm_after: float = 5.0  # from the start of an attempt until its warm parent imports for the next one
    health: float = 60.0  # for the health command of a group's host
    warm_imports: float = 120.0  # for a warm parent to be ready for a first attempt, from a slow disk as well
    stand_by_pause: float = 0.5  # before a lighthouse that lost its lease restarts as a standby
    port_wait: float = 1.0  # for the port of a lighthouse that dies with its keeper
    find_given: float = 10.0  # for a lighthouse whose address is given to a local job, and which should run already
    find_local: float = 30.0  # for a lighthouse that the same local job starts
    nodes_wait: float = 60.0  # for other nodes of a group in a local job, whose supervisors are not restarted

    # --- evidence of hangs, and dumps (launch.process.hangs, launch.workers) --------------------------------------

    hang_quiet: float = 3.0  # without a step, until a group's processes are examined
    hang_idle: float = 15.0  # time for which evidence of a hang must last
    hang_idle_at_first: float = (
        300.0  # like `hang_idle`, before the first commit or while a thread polls for a file or a lock
    )
    stall_usual: float = 10.0  # least time of a step before it counts as stalled
    stall_apart: float = 60.0  # like `stall_usual`, for an inner step of a group that trains apart
    dump_answer: float = 2.0  # for one worker's answer to one request
    dump_others: float = 4.0  # for all supervisors to add their parts to a folder

    # --- watchers of a Slurm job (launch.slurm.rules, launch.slurm.watch) ----------------------------------------------------

    watch_each: float = 1.0  # between two polls of a job
    watch_quiet: float = 15.0  # between two requests to Slurm while all groups run and report
    watch_answer: float = 1.5  # for a lighthouse's answer
    watch_stale: float = 3.5  # time for which a note may stay unchanged before another watcher takes over
    watch_silent: float = 3.0  # silence of a supervisor after which its node is examined
    watch_near: float = 2.0  # a supervisor that reported within this time counts as present
    watch_young: float = 15.0  # until all supervisors have reported to a new lighthouse
    watch_grace: float = 3.0  # after a part's end, for its last reports to reach the lighthouse

    # --- claims of a checkpoint's URL (core.training.save_duty) ------------------------------------------------------

    claim_beat: float = 5.0  # between two renewals of a job's claim at its URL
    claim_watch: float = 15.0  # without a renewal, until another job takes the URL

    # --- claims of a run directory (launch.job.run_claim) ------------------------------------------------------------

    run_beat: float = 2.0  # between two polls of a role, which renews its job's claim unless another role has
    run_watch: float = 8.0  # without a renewal, until another job may take a claim that was written on another host
    run_ending: float = 12.0  # for the roles of a local job to end after their launcher

    # --- connects among members, and margins beyond a deadline that another process should meet first -------------------

    connect: float = 10.0  # for members of a new quorum to connect; after it, the next quorum is a better attempt
    slow_connect: float = 1.0  # time after which a member that failed to connect is asked which others answer it
    answers: float = 0.5  # for the others' hosts to answer such a question
    meet: float = 2.0  # for members to publish their names before they connect
    early_answer: float = 0.1  # before the deadline of a call that names no other, at most a twentieth of the call
    late_answer: float = 1.0  # from a call's own deadline to gRPC's
    late_loop: float = 5.0  # for the group server's loop to take a call back
    late_store: float = 1.0  # from the end of a wait in the store to its answer
    late_gloo: float = 3.0  # from the timeout, for gloo to give up and the store to name the missing members
    late_accelerator: float = 0.5  # like `late_gloo`, for a connecting thread
    late_child: float = 1.0  # like `late_gloo`, for the child of a process group
    late_vote: float = 1.0  # from rank 0's own deadlines to its vote
    late_round: float = 5.0  # from a quorum's and a heal's own deadlines to the end of their thread

    def scaled(self, factor: float) -> Timing:
        """Return these times, each multiplied by `factor`."""
        return Timing(**{field.name: factor * getattr(self, field.name) for field in fields(self)})


TIMING = Timing().scaled(env.time_scale())
"""Times of this process. The scale is 1 except in tests."""
