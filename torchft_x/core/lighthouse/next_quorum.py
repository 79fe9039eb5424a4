"""Decides what follows the present quorum, when the next one is issued, and what a new lighthouse takes over.

After every event the lighthouse asks again whether a quorum can be formed. `core.quorum` and
`core.lighthouse.recover` answer that (pure functions of the situation). This module decides when they are asked, and acts
on the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchft_x.core.admission.claims import set_aside, unfounded
from torchft_x.core.admission.compatibility import CompatibilityCheck
from torchft_x.core.admission.finished_job import FinishedJob
from torchft_x.core.in_doubt import settle
from torchft_x.core.journal import JournalEntry
from torchft_x.core.lighthouse.grants import Grants
from torchft_x.core.lighthouse.recover import Adopt, RestartRecovery
from torchft_x.core.lighthouse.waiting import Waiting
from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.messages import Note
from torchft_x.core.messages.lighthouse import Issue, LighthouseEffect
from torchft_x.core.quorum import Form, Wait, form, wait_for
from torchft_x.core.types import Quorum, State, group_names, listed
from torchft_x.timing import TIMING

# Seconds that a member must have waited before the reason is logged.
_NOTE_WAIT_AFTER = 1.0


class QuorumTransition:
    """Issues quorums, and takes over what an earlier lighthouse left. Owns that takeover.

    Part of the lighthouse; shares its member table and quorum state.
    """

    def __init__(
        self,
        config: LighthouseConfig,
        members: MemberTable,
        quorum_state: QuorumState,
        waiting: Waiting,
        grants: Grants,
        compatibility: CompatibilityCheck,
        finished_job: FinishedJob,
        *,
        now: float,
        unix: float,
    ) -> None:
        """Start at `now`, in monotonic seconds; `unix` is that instant in unix seconds."""
        self._config = config
        self._members = members  # every known member
        self._quorum_state = quorum_state  # the present quorum
        self._waiting = waiting  # tells, refuses and leaves out members
        self._grants = grants  # how far members may run without asking
        self._compatibility = compatibility  # which members may train together
        self._finished_job = finished_job  # which members finish the job
        self._started_at = now
        self._unix = unix - now  # offset from monotonic to unix seconds
        self.takeover = RestartRecovery(config, now)  # recovers what preceded this process (R8)
        self._inherits = False  # whether a journal was found
        self._inherited = 0  # id of the quorum found in the journal (R8c); 0: none, or known to be old
        self._noted = ""  # reason for waiting that was logged last

    def __repr__(self) -> str:
        return f"<QuorumTransition {self.takeover}>"

    # --- what is waited for --------------------------------------------------------------------------------------

    def undecided(self, now: float) -> str:
        """Return why there is no next quorum yet, for people; '' if nobody has asked for one."""
        if self._quorum_state.asking:
            outcome = self.outcome(now)
            return outcome.reason if isinstance(outcome, Wait) else ""
        unheard = [r for r in self._members if r.join is not None]
        names = listed([f"{r.replica_id} ({r.lost})" for r in unheard])
        left_out = all(r.late for r in unheard)  # they live
        return f"{'Left out' if left_out else 'Nobody who has asked is alive'}: {names}." if unheard else ""

    def knows_all(self, now: float) -> bool:
        """Return whether it is known which members are here, and so which of them count."""
        open_ = self.takeover.is_open
        return not (open_ and (self.takeover.surely_waits() or isinstance(self.takeover.decide(now), Wait)))

    def goes_without(self, names: frozenset[str], now: float, top: State | None = None) -> bool:
        """Return whether a quorum could be formed at once without these members, whether they have asked or not.

        `top`: the newest state of a quorum with them, which the others must hold as well.
        """
        outcome = self.outcome(now, without=names)
        if not isinstance(outcome, Form) or outcome.left is not None:
            return False  # a member that may hold the newest state is always waited for
        return top is None or settle(outcome.members, State()).top == top

    def outcome(self, now: float, *, without: frozenset[str] = frozenset()) -> Form | Wait:
        """Return what the rules say now, or would say if nobody waited for the members `without`."""
        if self.takeover.is_open:
            outcome = self.takeover.decide(now)
            if isinstance(outcome, Wait):
                return outcome
        cur, missing = self._quorum_state.current, self._quorum_state.missing - without
        if cur is not None and missing:  # `form` would say the same, but looks at all candidates
            return wait_for(cur, sorted(missing))
        # A member that asks commits no more in the present quorum.
        away = self._quorum_state.ran - self._quorum_state.asking
        outside = [r for r in map(self._members.get, away) if r is not None] if away else []
        over = frozenset([r.replica_id for r in outside if self._waiting.is_given_up(r, now)])
        c = self._config
        decision = form(self._quorum_state.situation(c, over, now=now, without=without))
        if isinstance(decision, Form) and decision.left is not None:
            return self._returning(now) or self._finished_job.objection(decision, now) or decision  # R21
        if isinstance(decision, Wait) and decision.until is None:
            return self._finished_job.too_few_left(self._quorum_state.asking, c.min_replicas) or decision  # R21
        return decision

    def _returning(self, now: float) -> Wait | None:
        """Return a wait for supervisors that have not come back yet to a lighthouse that has taken over.

        They come one after the other, and nobody knows before what they hold.
        """
        cur, until = self._quorum_state.current, self._started_at + min(self._config.join_timeout, TIMING.takeover)
        if cur is None or not self._inherits or now >= until:
            return None
        here = group_names(self._quorum_state.asking) | self._members.supervisors.announced
        groups = [m.replica_id for m in cur.members if not group_names([m.replica_id]) & here]
        if not groups:
            return None
        return Wait(
            f"This lighthouse has just taken over, and nothing was heard yet of the supervisors of {listed(sorted(groups))}, which may "
            "hold the newest state.",
            until,
        )

    def note_wait(self, now: float) -> list[LighthouseEffect]:
        """Return a log line if the reason for waiting is new, and what members that have asked are told.

        Do nothing before a member has waited for `_NOTE_WAIT_AFTER` seconds.
        """
        asked = [r for r in self._members if r.join is not None and now - r.join.since >= _NOTE_WAIT_AFTER]
        if not asked:
            return []
        outcome = self.outcome(now) if self._quorum_state.asking else None
        wait = outcome if isinstance(outcome, Wait) else None
        effects: list[LighthouseEffect] = []
        reason = wait.reason if wait is not None else self.undecided(now)
        in_time = [r for r in asked if not r.late]  # the log has said already why the others are left out
        if in_time and reason and reason != self._noted:
            self._noted = reason
            effects.append(Note("undecided", reason))
        if wait is not None and wait.finished:
            effects += self._finished_job.stop_late(wait.reason, in_time, now)
        return effects + self._waiting.tell(reason, wait is not None and wait.ending, now)

    # --- the next one --------------------------------------------------------------------------------------------

    def maybe_form(self, now: float, *, tick: bool) -> list[LighthouseEffect]:
        """Issue the next quorum if it can be formed. `tick`: whether time has passed."""
        effects: list[LighthouseEffect] = []
        if self.takeover.is_open:
            if not tick and self.takeover.surely_waits():
                return effects
            outcome = self.takeover.decide(now)
            if isinstance(outcome, Adopt):
                effects += self._adopt(outcome, now)
        if self._surely_waits(tick=tick):
            return effects
        while isinstance(decision := self.outcome(now), Form):
            refusals = self.refuse_misfits()  # of two that differ one may have been away when the other asked
            decision, notes, doubts = self._weigh(decision)
            refusals += doubts
            refusals += [] if refusals else self._leave_out(decision, now)
            if not refusals:
                return effects + notes + self._issue(decision, now)
            effects += refusals  # each refusal takes a candidate away
        self._quorum_state.changed = False
        return effects

    def _surely_waits(self, *, tick: bool) -> bool:
        """Return whether `form`, which looks at every member, can be skipped at this event.

        It can while members of the present quorum are waited for, or too few ask. Between ticks it also can while
        nothing but time has changed since it said `Wait`. Before the first quorum it can between ticks, too, while a
        member that is here, or an announced group, has not asked.
        """
        t = self._quorum_state
        if t.missing or len(t.asking) < self._config.min_replicas:
            return True
        first = t.current is None and (bool(t.silent) or len(t.asking) < len(self._members.supervisors.groups))
        return not tick and (not t.changed or first)

    def _issue(self, decision: Form, now: float) -> list[LighthouseEffect]:
        left, reached, asked = decision.left, self._quorum_state.reached, self._quorum_state.asked_since
        records = self._members.records_of(decision.members)
        sessions = tuple([r.session for r in records if r.session is not None])
        calls = tuple([call for r in records for call in r.calls])
        quorum = self._quorum_state.issue(decision, now=now, unix=self._unix + now, lease=self._config.lease)
        self._quorum_state.chain.close(lambda r: (x := self._members.get(r)) is None or self._waiting.is_over(x, now))
        self._end_takeover()
        effects: list[LighthouseEffect] = []
        if left is not None:
            fates = {r.replica_id: r.proof or r.lost for r in self._members.records_of(left.members)}
            text, steps = loss(left, reached, quorum, fates), max(0, steps_lost(left, reached, quorum))
            effects.append(Note("new_lineage", text, quorum_id=quorum.id, steps=steps))
        effects.append(Issue(quorum, sessions, calls, max(0.0, now - min(asked, now))))
        if decision.rebuild:
            self._finished_job.issued(decision.members, new_lineage=left is not None)
        return effects

    def refuse_misfits(self) -> list[LighthouseEffect]:
        """Refuse the candidates that differ from the others (`core.admission.compatibility`)."""
        misfits = self._compatibility.misfits()
        return [effect for record, sentence in misfits for effect in self._waiting.refuse(record, sentence)]

    def _weigh(self, decision: Form) -> tuple[Form, list[LighthouseEffect], list[LighthouseEffect]]:
        """Return the decision with contradicted claims set aside, the notes on these, and refusals (R22).

        Clients of torchft whose claims are contradicted are refused, because they can't be told to heal.
        """
        current = self._quorum_state.current if decision.left is None else None
        doubted: set[str] = set()
        notes: list[LighthouseEffect] = []
        refusals: list[LighthouseEffect] = []
        for member, sentence in unfounded(decision.members, current, self._quorum_state.granted_through):
            record = self._members.get(member.replica_id)
            if record is not None and record.unary:
                refusals += self._waiting.refuse(record, sentence)
            else:
                doubted.add(member.replica_id)
                notes.append(Note("doubted", f"{sentence} It heals.", member.replica_id))
        if doubted:
            decision = replace(decision, members=set_aside(decision.members, doubted))
        return decision, notes, refusals

    def _leave_out(self, decision: Form, now: float) -> list[LighthouseEffect]:
        """Leave out members that could not connect to another one again and again.

        Otherwise every quorum with both would lose a step.
        """
        top = settle(decision.members, State()).top
        return self._waiting.part(decision.members, now, lambda names: self.goes_without(names, now, top))

    # --- what was before this process -------------------------------------------------------------------------------

    def inherit(self, previous: JournalEntry) -> list[LighthouseEffect]:
        """Go on where the lighthouse before us stopped, as if all sessions had broken at this moment (R8(c))."""
        quorum, now = previous.quorum, self._started_at
        for entry in previous.members:
            self._members.restore(entry, now)
        self._members.suspect_boot_id = previous.boot_id
        self._end_takeover()
        granted = previous.granted_through
        self._quorum_state.adopt(quorum, previous.open, started_at=now, leased=previous.leased, granted_through=granted)
        self._quorum_state.reached = max(self._quorum_state.reached, previous.reached)
        for absent in previous.absent:
            record = self._members.restore_absent(absent, now)
            if record is not None and record.lost and record.replica_id in self._quorum_state.inside:
                # Members are told when they come back.
                self._quorum_state.broken = f"{record.replica_id} is lost: {record.lost}."
        self._inherited, self._inherits = quorum.id, True
        text = f"Quorum {quorum.id} of {listed([m.replica_id for m in quorum.members])} at {quorum.top} is taken over."
        return [Note("adopted", text, quorum_id=quorum.id)]

    def notice_newer(self, replica_id: str, quorum: Quorum, now: float) -> None:
        """Forget the quorum from the journal if the lighthouse before us issued a newer one than it wrote down.

        We then know nothing, as after a start. Only a member of the journal's quorum is believed, because all that was
        issued later had to follow that quorum (R22).
        """
        cur = self._quorum_state.current
        if (
            cur is not None
            and replica_id in self._quorum_state.inside
            and cur.id == self._inherited
            and quorum.id > cur.id
        ):
            self._inherited = 0
            self._quorum_state.forget()
            self.takeover = RestartRecovery(self._config, now)

    def _adopt(self, adopt: Adopt, now: float) -> list[LighthouseEffect]:
        """Go on where the lighthouse before us stopped (R8).

        Members that hold another quorum, or have lost a member, must ask.
        """
        quorum = adopt.quorum
        granted = self.takeover.granted_through(quorum)
        self._end_takeover()
        self._quorum_state.adopt(quorum, adopt.older, started_at=self._started_at, granted_through=granted)
        self._finished_job.trains(m.replica_id for m in quorum.members)
        text = f"Adopted quorum {quorum.id} of {listed([m.replica_id for m in quorum.members])} at {quorum.top}."
        effects: list[LighthouseEffect] = [Note("adopted", text, quorum_id=quorum.id)]
        for record in self._members:
            inside = record.replica_id in self._quorum_state.inside
            if inside and record.lost:
                text = f"{record.replica_id} is lost: {record.lost}."
                effects += self._waiting.end_quorum((record.replica_id,), text, spare=record)
            elif (
                inside
                and record.session is not None
                and record.quorum_id != quorum.id
                and not self._quorum_state.broken
            ):
                text = f"{record.replica_id} never received it: the lighthouse before this one died while sending it."
                effects += self._waiting.end_quorum((), text, spare=record)
            if record.quorum_id not in (0, quorum.id):
                effects += self._waiting.notify(record, f"quorum {quorum.id} has been formed since.")
        return effects + self._grants.release(self._members, now)

    def _end_takeover(self) -> None:
        self.takeover.end()
        self._noted = ""


def steps_lost(left: Quorum, reached: int, quorum: Quorum) -> int:
    """Return how many steps known to be committed no member of the new quorum holds; 0 or less: none.

    `left`: the quorum whose state no member carries on; `reached`: the newest step that one of its members reported.
    """
    return max(left.top.step, reached) - quorum.top.step


def loss(left: Quorum, reached: int, quorum: Quorum, fates: Mapping[str, str]) -> str:
    """Return the sentences that say what was lost, with which members, and what would have kept it.

    `fates`: replica id -> how it ended, of the members of `left`.
    """
    steps, step = steps_lost(left, reached, quorum), quorum.top.step
    names = [m.replica_id for m in left.carriers or left.members]
    ends = listed([f"{name} ({fates.get(name) or 'it is away'})" for name in names])
    if steps <= 0:
        return (
            f"A new lineage begins at step {step}: no member carries on q{left.number}, which stood at {left.top}. "
            f"No committed step is known to be lost. Its state was with {ends}."
        )
    lost = "1 committed step is" if steps == 1 else f"{steps} committed steps are"
    return (
        f"A new lineage begins at step {step}: at least {lost} lost, up to step {step + steps} of q{left.number}, because all "
        f"groups that held them are gone: {ends}. What outlives all groups is a checkpoint (train_ddp.py: --checkpoint PATH; in "
        "your own script: save one and load it at the start); more groups, on more hosts, make it rarer that all are gone at once."
    )
