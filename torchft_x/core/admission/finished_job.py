"""Keeps a job from being begun again while it is being finished, and after that (R21).

A member that leaves at the end of the training takes the newest state with it, into a process that evaluates, exports
or saves. By R9(b) it is over, so a group that comes late, or comes back, could begin a new lineage and train it all
again. So the member's *departure* is remembered:

* A new lineage waits while the departed process runs, as its supervisor says. Without a supervisor it waits while a
  socket stands that the process left open.
* When that process has ended well, the job is finished. Members that were in it and did not finish it are told to stop.
* Members that train on are told to stop, too, when so many have ended well that too few are left for a quorum.

A process that ends with an error has not finished the job, and a member that leaves before the end (a preemption) says
so: then R9 decides alone. A group that finished the job may begin another one, and so may groups that were never in it,
because a lighthouse may outlive its jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from torchft_x.core.journal import Departure, JournalEntry
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.membership.record import MemberRecord
from torchft_x.core.messages.job import TellStop
from torchft_x.core.messages.lighthouse import LighthouseEffect, Probe, Refuse
from torchft_x.core.quorum import Form, Wait
from torchft_x.core.types import Member, State, group_of, listed
from torchft_x.timing import POLL_SLOW, TIMING


class FinishedJob:
    """Departures at the end of the training, by group id. Decides whether the job may be trained again.

    Part of the lighthouse; shares its member table.
    """

    def __init__(self, members: MemberTable, *, lease: float, previous: JournalEntry | None = None, now: float) -> None:
        """Start with the departures in the journal of the lighthouse before this one (`previous`), if there is one.

        `lease`: seconds of silence after which a process counts as lost.
        """
        left, job = (previous.left, previous.job) if previous is not None else ((), ())
        self._took_over = now if previous is not None else None
        self._members = members  # every known member
        self._lease = lease
        self._left = {group_of(d.replica_id): d for d in left}  # group -> its member that has left for good
        # Replica ids that left, or were stopped, before the end, and so finish nothing; a new set when it changes.
        self.early = (
            frozenset(e.replica_id for e in previous.members if e.early) if previous is not None else frozenset[str]()
        )
        self._attempts: dict[str, str] = {}  # group -> its newest member
        # Replica ids of `_attempts` that are in no quorum now, and whose ends their supervisors have not reported.
        self.unreported: frozenset[str] = frozenset()
        # Replica id, in `unreported` or departed -> when its process last ran, as far as its supervisor said.
        self._heard = {d.replica_id: now for d in left}
        self.job = job  # groups that were members since the last job was finished; a new tuple when it changes
        self._looked = now  # when processes were last checked
        # Group -> when its wait began, and when it was last seen to wait.
        self._held: dict[str, tuple[float, float]] = {}
        self.departures = tuple(self._left.values())  # a new tuple exactly when one changes

    def __repr__(self) -> str:
        return f"<FinishedJob {self.departures}>"

    # --- what is heard -----------------------------------------------------------------------------------------------

    def left(self, record: MemberRecord, state: State, *, early: bool, lingers: str, now: float) -> None:
        """Record that this member has left in good order, at `state`.

        `early`: before the end of the training. `lingers`: address of a socket that its process left open; '': none.
        """
        if early or record.replica_id in self.early:
            self.early |= {record.replica_id}
        elif record.attempt_id.token or lingers:  # otherwise nobody can ever report how it ends
            self._put(Departure(record.replica_id, record.attempt_id, state, lingers), now)

    def attempt_ended(self, token: str, code: int, records: Iterable[MemberRecord], now: float) -> None:
        """Record that the process of that attempt has ended with this exit code.

        `records`: those of its records that were members of quorums that count, or are in `unreported`.
        """
        for group, d in list(self._left.items()):
            if token and d.attempt_id.token == token:
                if code == 0:
                    self._put(replace(d, ended=True), now)
                else:
                    self._drop(group)
                return
        for record in records if code == 0 else ():  # its leave was lost, or it ended without one
            newest = self._attempts.get(group_of(record.replica_id), record.replica_id)
            if record.replica_id not in self.early and record.replica_id == newest:  # else it has come back since
                self._put(Departure(record.replica_id, record.attempt_id, ended=True), now)

    def probed(self, replica_id: str, address: str, refused: bool, now: float) -> None:
        """Record that a departed process has ended, if the socket that it left open refuses.

        Without a supervisor nobody can know its exit code. It left in good order, so it counts as ended well.
        """
        d = self._left.get(group_of(replica_id))
        if refused and d is not None and d.replica_id == replica_id and d.lingers and d.lingers == address:
            self._put(replace(d, ended=True), now)

    def issued(self, members: Iterable[Member], *, new_lineage: bool) -> None:
        """Record that these members train now, and drop the departures that this makes void."""
        members = list(members)
        groups = {group_of(m.replica_id) for m in members}
        if new_lineage:
            if self._left:  # the job was finished: this is another one
                self.job = ()
                self._attempts.clear()
            self.trains(m.replica_id for m in members)  # a lost lineage belonged to the same job
            self.early &= set(self._attempts.values()) - {m.replica_id for m in members}
            self._held.clear()
            for group in list(self._left):
                self._drop(group)
        else:
            self.trains(m.replica_id for m in members)
            for group in groups & self._left.keys():  # the group has come back
                self._drop(group)

    def trains(self, names: Iterable[str]) -> None:
        """Record that these replica ids are in the job, and that no others train now."""
        attempts = {group_of(name): name for name in names}
        self._attempts.update(attempts)
        self.unreported = frozenset(
            name for group, name in self._attempts.items() if group not in attempts and self._may_finish(name)
        )
        for group, replica_id in attempts.items():
            if group in self._left and self._left[group].replica_id != replica_id:
                self._drop(group)  # that departure was of an earlier attempt
        if new := attempts.keys() - set(self.job):
            self.job = tuple(sorted(new.union(self.job)))

    def poll(self, now: float) -> list[LighthouseEffect]:
        """Return probes of departed processes that left a socket open, at most once in `POLL_SLOW` seconds.

        Forget members of `unreported` that can't finish any more, or whose supervisors were silent for `lease` seconds.
        """
        if not (self._left or self.unreported) or now - self._looked < POLL_SLOW:
            return []
        self._looked = now
        tokens = {r.replica_id: r.attempt_id.token for r in self._members.named(self.unreported)}
        tokens.update((d.replica_id, d.attempt_id.token) for d in self.departures)
        self._heard = {name: self._last_heard(name, token, now) for name, token in tokens.items()}
        self.unreported = frozenset(
            name for name in self.unreported if self._may_finish(name) and now - self._heard[name] < self._lease
        )
        return [Probe(d.replica_id, d.lingers) for d in self.departures if d.lingers and not d.ended]

    # --- what follows ------------------------------------------------------------------------------------------------

    def objection(self, decision: Form, now: float) -> Wait | None:
        """Return why this new lineage may not begin now, or ever; None if it may."""
        assert decision.left is not None
        groups = {group_of(m.replica_id) for m in decision.members}
        if any(map(self._has_finished, decision.members)):
            return None  # a group that has finished the job begins another one
        running = [d.replica_id for group, d in list(self._left.items()) if self._runs(group, d, now)]
        silent = self._unfinished((*(m.replica_id for m in decision.left.members), *sorted(self.unreported)), now)
        if running or silent:
            which = f"{listed(running)} left at the end of the training" if running else f"{listed(silent)} is gone"
            return Wait(
                f"{which}, and its process still runs: nobody trains the job again before it is known how that ends.",
                ending=True,
            )
        if not self._left or groups.difference(self.job):
            return None
        d = max(self._left.values(), key=lambda d: d.state)
        return Wait(
            f"The job is finished: {d.replica_id} has completed it, at {d.state}, and has ended. To train it again start "
            "the groups that completed it, too, or a new lighthouse.",
            finished=True,
        )

    def too_few_left(self, asking: Collection[str], min_replicas: int) -> Wait | None:
        """Return why these replica ids will never train on, if so many others have ended well that too few are left."""
        ended = [d for d in self._left.values() if d.ended]
        if not ended or len(self.job) - len(ended) >= min_replicas:
            return None
        groups = {group_of(replica_id) for replica_id in asking}
        if groups - set(self.job) or any(group_of(d.replica_id) in groups for d in ended):
            return None  # another job begins
        return Wait(
            f"{listed([d.replica_id for d in ended])} has ended well, at {max(d.state for d in ended)}, and the groups that are "
            f"left are too few to go on: min_replicas is {min_replicas}. Give all groups the same number of steps, or a smaller "
            "--min_replicas.",
            finished=True,
        )

    def stop_late(self, reason: str, asking: Iterable[MemberRecord], now: float) -> list[LighthouseEffect]:
        """Stop the members that ask, because the job is finished, when they have asked for `finish_grace`."""
        effects: list[LighthouseEffect] = []
        for record in asking:
            if record.session is not None and now - self._held_since(record, now) >= TIMING.finish_grace:
                self.early |= {record.replica_id}  # a stopped process may exit with 0, which finishes nothing
                group = self._members.supervisors.group_of(record.attempt_id.token)
                effects.append(TellStop(group, 0, reason) if group else Refuse(reason, session=record.session))
        return effects

    def _held_since(self, record: MemberRecord, now: float) -> float:
        """Return when this member's group began to wait like this, in whichever of its attempts.

        Otherwise a group whose attempts give up sooner would ask again for ever.
        """
        group = group_of(record.replica_id)
        since, last = self._held.get(group, (now, now))
        if now - last > TIMING.finish_forgotten:
            since = now
        if record.join is not None:
            since = min(since, record.join.since)
        self._held[group] = since, now
        return since

    # --- inside ------------------------------------------------------------------------------------------------------

    def _has_finished(self, member: Member) -> bool:
        """Return whether this member's group has finished the job, or this process has left at its end.

        A later attempt may have been started since the supervisor of the departed one was last heard.
        """
        d, record = self._left.get(group_of(member.replica_id)), self._members.get(member.replica_id)
        return d is not None and (d.ended or (record is not None and record.attempt_id.token == d.attempt_id.token))

    def _runs(self, group: str, d: Departure, now: float) -> bool:
        """Return whether the departed process runs, as far as anybody knows. Forget one of which nothing is heard."""
        if d.ended:
            return False
        if d.lingers or now - self._last_heard(d.replica_id, d.attempt_id.token, now) < self._lease:
            return True
        self._drop(group)
        return False

    def _may_finish(self, name: str) -> bool:
        """Return whether this member's process may yet end well, and has a supervisor that would report it."""
        record = self._members.get(name)
        if record is None or name in self.early:
            return False
        return bool(record.attempt_id.token) and not self._members.has_ended(record.attempt_id)

    def _last_heard(self, name: str, token: str, now: float) -> float:
        """Return when the supervisor of this attempt was last heard, as far as `_heard` and the supervisors know.

        `last_told` covers a group that was started elsewhere: the older attempt may still finish the job.
        """
        heard = self._members.supervisors.last_heard(token)
        heard = self._members.supervisors.last_told(token) if heard is None else heard
        return self._heard.get(name, now) if heard is None else max(heard, self._heard.get(name, heard))

    def _unfinished(self, names: Iterable[str], now: float) -> list[str]:
        """Return those of these members that are gone without a leave, while their processes may run.

        The leave may have been lost on its way, or with the lighthouse before this one. The supervisor says that the
        process runs, or may yet say so, because it is away or has not spoken to this lighthouse.
        """
        found = []
        for record in self._members.named(dict.fromkeys(filter(self._may_finish, names))):
            heard = self._members.supervisors.last_heard(record.attempt_id.token)
            heard = self._took_over if heard is None else heard
            # A member without an address has not spoken to this lighthouse.
            gone = record.proof or record.refused or not record.address
            if gone and heard is not None and now - heard < self._lease:
                found.append(record.replica_id)
        return found

    def _put(self, departure: Departure, now: float) -> None:
        group = group_of(departure.replica_id)
        self._left[group] = departure
        self._heard[departure.replica_id] = now
        self.departures = tuple(self._left.values())

    def _drop(self, group: str) -> None:
        self._left.pop(group, None)
        self.departures = tuple(self._left.values())
