"""What follows the present quorum: what is waited for, when the next one is issued, and what a new lighthouse takes over.

After every event the question is asked again whether a quorum can be formed. `core.quorum.rule` and `core.restart.recover` say so
(pure functions of the situation); here is when they are asked, and what comes of their answer.
"""

from __future__ import annotations

from dataclasses import replace

from torchft_x.core.admission.claims import set_aside, unfounded
from torchft_x.core.admission.compatibility import CompatibilityCheck
from torchft_x.core.admission.finished_job import FinishedJob
from torchft_x.core.heal import stranded
from torchft_x.core.journal import JournalEntry
from torchft_x.core.lighthouse.grants import Grants
from torchft_x.core.lighthouse.loss import LossHandler
from torchft_x.core.lighthouse.stragglers import Stragglers
from torchft_x.core.lighthouse.wait_notices import WaitNotices
from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.messages.common import Note
from torchft_x.core.messages.lighthouse import Issue, LighthouseEffect
from torchft_x.core.quorum import history_fork
from torchft_x.core.quorum.rule import Form, Wait, form, wait_for
from torchft_x.core.restart.recover import Adopt, RestartRecovery
from torchft_x.core.types import Member, Quorum, State, group_names, listed, settlement
from torchft_x.timing import TIMING

# A reason for waiting is worth a line in the log when somebody has waited this long.
_NOTE_WAIT_AFTER = 1.0


class QuorumTransition:
    """Part of the lighthouse; shares its roll and tenure."""

    def __init__(
        self,
        config: LighthouseConfig,
        roll: MemberTable,
        tenure: QuorumState,
        alarm: LossHandler,
        grants: Grants,
        likeness: CompatibilityCheck,
        endings: FinishedJob,
        stragglers: Stragglers,
        *,
        now: float,
        unix: float,
    ) -> None:
        """`unix`: of the same instant as `now`, in unix seconds."""
        self._config = config
        self._roll = roll  # every member heard of
        self._tenure = tenure  # the present quorum
        self._alarm = alarm  # tells and refuses members
        self._grants = grants  # goes on in a quorum that is taken over
        self._likeness = likeness  # who may train with whom
        self._endings = endings  # who finishes the job
        self._stragglers = stragglers  # leaves members out
        self._started_at = now
        self._unix = unix - now  # added to a monotonic time it dates it
        self.takeover = RestartRecovery(config, now)  # of what was before this life (R8)
        self._inherits = False  # something was found written down
        self._inherited = 0  # id of the quorum that was found written down (R8c); 0: none, or it is known to be old
        self._waits = WaitNotices()  # who was told what it waits for
        self._noted = ""  # reason for waiting that was noted last

    def __repr__(self) -> str:
        return f"<QuorumTransition {self.takeover}>"

    # --- what is waited for ----------------------------------------------------------------------------------------------

    def undecided(self, now: float) -> str:
        """Why there is no next quorum yet, for people; '' if nobody has asked for one."""
        if self._tenure.asking:
            outcome = self.outcome(now)
            return outcome.reason if isinstance(outcome, Wait) else ""
        unheard = [r for r in self._roll if r.join is not None]
        names = listed([f"{r.replica_id} ({r.lost})" for r in unheard])
        left_out = all(r.late for r in unheard)  # by `stragglers`; they live
        return f"{'Left out' if left_out else 'Nobody who has asked is alive'}: {names}." if unheard else ""

    def knows_all(self, now: float) -> bool:
        """Whether it is known who is here already, so who counts."""
        open_ = self.takeover.is_open
        return not (open_ and (self.takeover.surely_waits() or isinstance(self.takeover.decide(now), Wait)))

    def goes_without(self, names: frozenset[str], now: float, top: State | None = None) -> bool:
        """Return whether a quorum could be formed at once without these members, whether they have asked or not.

        `top`: the newest state of a quorum with them, which the others must hold as well.
        """
        outcome = self.outcome(now, without=names)
        if not isinstance(outcome, Form) or outcome.left is not None:
            return False  # who may hold the newest state is never too late
        return top is None or settlement(outcome.members).top == top

    def outcome(self, now: float, *, without: frozenset[str] = frozenset()) -> Form | Wait:
        """What the rules say now, or would say if nobody waited for the members `without`."""
        if self.takeover.is_open:
            outcome = self.takeover.decide(now)
            if isinstance(outcome, Wait):
                return outcome
        cur, missing = self._tenure.current, self._tenure.missing - without
        if cur is not None and missing:  # `form` would say the same, after a look at all candidates
            return wait_for(cur, sorted(missing))
        away = self._tenure.ran - self._tenure.asking  # whoever asks will not commit in the present quorum
        outside = [r for r in map(self._roll.get, away) if r is not None] if away else []
        over = frozenset([r.replica_id for r in outside if self._alarm.is_given_up(r, now)])
        c = self._config
        decision = form(
            self._tenure.situation(
                self._roll, over, now=now, min_replicas=c.min_replicas,
                join_timeout=c.join_timeout, longest_wait=c.longest_wait, without=without,
            )
        )  # fmt: skip
        if isinstance(decision, Form) and decision.new_lineage:
            return self._returning(now) or self._endings.objection(decision, now) or decision  # R21
        if isinstance(decision, Wait) and decision.until is None:
            return self._endings.too_few_left(self._tenure.asking, c.min_replicas) or decision  # R21
        return decision

    def _returning(self, now: float) -> Wait | None:
        """Supervisors come back to a lighthouse that has taken over, one after the other; what they hold is not known before."""
        cur, until = self._tenure.current, self._started_at + min(self._config.join_timeout, TIMING.takeover)
        if cur is None or not self._inherits or now >= until:
            return None
        here = group_names(self._tenure.asking) | self._roll.supervisors.announced
        groups = [m.replica_id for m in cur.members if not group_names([m.replica_id]) & here]
        if not groups:
            return None
        return Wait(
            f"This lighthouse has just taken over, and nothing was heard yet of the supervisors of {listed(sorted(groups))}, which may "
            "hold the newest state.",
            until,
        )

    def note_wait(self, now: float) -> list[LighthouseEffect]:
        """A line for the log, and a word to whoever has waited for a moment, when the reason is a new one."""
        joins = [(r, r.join) for r in self._roll if r.join is not None and not r.late]  # the late were told why
        waiting = [r for r, join in joins if now - join.since >= _NOTE_WAIT_AFTER]
        if not waiting:
            return []
        outcome = self.outcome(now) if self._tenure.asking else None
        effects: list[LighthouseEffect] = []
        reason = outcome.reason if isinstance(outcome, Wait) else self.undecided(now)
        if reason and reason != self._noted:
            self._noted = reason
            effects.append(Note("undecided", reason))
        if isinstance(outcome, Wait):
            effects += self._waits.tell([r.session for r in waiting if r.session is not None], outcome, now)
            if outcome.ending or outcome.finished:
                effects += self._endings.tell(outcome, [r.join for r in waiting if r.join is not None], now)
        return effects

    # --- the next one ----------------------------------------------------------------------------------------------------

    def maybe_form(self, now: float, *, tick: bool) -> list[LighthouseEffect]:
        """Something may have changed. `tick`: time has passed."""
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
            refusals = self.refuse_misfits()  # one may have been away when the other asked
            decision, notes, doubts = self._weigh(decision)
            refusals += doubts or self._refuse_stranded(decision.members)
            refusals += [] if refusals else self._leave_out(decision, now)
            if not refusals:
                return effects + notes + self._issue(decision, now)
            effects += refusals  # each takes candidates away
        self._tenure.changed = False
        return effects

    def _surely_waits(self, *, tick: bool) -> bool:
        """Whether `form`, which looks at every member, need not be asked at this event: members of the present quorum
        are waited for, too few ask, or nothing but time has changed since it said `Wait`, which counts at ticks. So do
        asks before the first quorum, while somebody is here, or announced, that has not asked."""
        t = self._tenure
        if t.missing or len(t.asking) < self._config.min_replicas:
            return True
        first = t.current is None and (bool(t.silent) or len(t.asking) < len(self._roll.supervisors.groups))
        return not tick and (not t.changed or first)

    def _issue(self, decision: Form, now: float) -> list[LighthouseEffect]:
        left, reached, asked = decision.left, self._tenure.reached, self._tenure.asked_since
        records = self._roll.of(decision.members)
        sessions = tuple([r.session for r in records if r.session is not None])
        calls = tuple([call for r in records for call in r.calls])
        quorum = self._tenure.issue(decision, self._roll, now=now, unix=self._unix + now, lease=self._config.lease)
        self._tenure.chain.close(lambda r: (x := self._roll.get(r)) is None or self._alarm.is_over(x, now))
        self._end_takeover()
        effects: list[LighthouseEffect] = []
        if left is not None:
            fates = {r.replica_id: r.proof or r.lost for r in self._roll.of(left.members)}
            text, steps = (
                history_fork.sentence(left, reached, quorum, fates),
                history_fork.steps_lost(left, reached, quorum),
            )
            effects.append(Note("new_lineage", text, quorum_id=quorum.id, steps=max(0, steps)))
        effects.append(Issue(quorum, sessions, calls, max(0.0, now - min(asked, now))))
        if decision.rebuild:
            self._endings.issued(decision.members, new_lineage=decision.new_lineage)
        return effects

    def refuse_misfits(self) -> list[LighthouseEffect]:
        """Those that differ from the others, see `core.admission.compatibility`."""
        misfits = self._likeness.misfits()
        return [effect for record, sentence in misfits for effect in self._alarm.refuse(record, sentence)]

    def _weigh(self, decision: Form) -> tuple[Form, list[LighthouseEffect], list[LighthouseEffect]]:
        """R22. The same without the word of those that the others contradict, and what is said of these; and, of clients
        of the peer, which can't be told to heal, refusals."""
        current = self._tenure.current if decision.left is None else None
        doubted: set[str] = set()
        notes: list[LighthouseEffect] = []
        refusals: list[LighthouseEffect] = []
        for member, sentence in unfounded(decision.members, current, self._tenure.granted_through):
            record = self._roll.get(member.replica_id)
            if record is not None and record.unary:
                refusals += self._alarm.refuse(record, sentence)
            else:
                doubted.add(member.replica_id)
                notes.append(Note("doubted", f"{sentence} It heals.", member.replica_id))
        if doubted:
            decision = replace(decision, members=set_aside(decision.members, doubted))
        return decision, notes, refusals

    def _refuse_stranded(self, members: tuple[Member, ...]) -> list[LighthouseEffect]:
        """Whoever can't heal within its library would cost every quorum it is in a step."""
        effects: list[LighthouseEffect] = []
        for member, sentence in stranded(members, self._tenure.inside):
            record = self._roll.get(member.replica_id)
            effects += self._alarm.refuse(record, sentence) if record is not None else []
        return effects

    def _leave_out(self, decision: Form, now: float) -> list[LighthouseEffect]:
        """Whoever could not connect with another member again and again would cost every quorum of both a step."""
        top = settlement(decision.members).top

        def goes_without(names: frozenset[str]) -> bool:
            return self.goes_without(names, now, top)

        return self._stragglers.part(decision.members, now, goes_without)

    # --- what was before this life ---------------------------------------------------------------------------------------

    def inherit(self, legacy: JournalEntry) -> list[LighthouseEffect]:
        """R8(c): go on where the lighthouse before us stopped, as if all sessions had broken in this moment."""
        quorum, now = legacy.quorum, self._started_at
        for kin in legacy.kin:
            self._roll.restore(kin, now)
        self._end_takeover()
        self._tenure.adopt(
            quorum,
            legacy.open,
            self._roll,
            started_at=now,
            leased=legacy.leased,
            granted_through=legacy.granted_through,
        )
        self._tenure.reached = max(self._tenure.reached, legacy.reached)
        for absent in legacy.absent:
            record = self._roll.restore_absent(absent, now)
            if record is not None and record.lost:
                self._tenure.recount(record)
                if record.replica_id in self._tenure.inside:
                    self._tenure.broken = f"{record.replica_id} is lost: {record.lost}."  # told when they come back
        self._inherited, self._inherits = quorum.id, True
        text = f"Quorum {quorum.id} of {listed([m.replica_id for m in quorum.members])} at {quorum.top} is taken over."
        return [Note("adopted", text, quorum_id=quorum.id)]

    def notice_newer(self, replica_id: str, quorum: Quorum, now: float) -> None:
        """The lighthouse before us has issued a newer quorum than it wrote down: we know nothing, as after a start. A
        member of what it wrote down has to say so: all that it issued later was to follow that (R22)."""
        cur = self._tenure.current
        if cur is not None and replica_id in self._tenure.inside and cur.id == self._inherited and quorum.id > cur.id:
            self._inherited = 0
            self._tenure.forget()
            self.takeover = RestartRecovery(self._config, now)
            for record in self._roll:
                self._tenure.recount(record)

    def _adopt(self, adopt: Adopt, now: float) -> list[LighthouseEffect]:
        """R8: go on where the lighthouse before us stopped. Who holds another quorum, or lost a member, must ask."""
        quorum = adopt.quorum
        granted = self.takeover.granted_through(quorum)
        self._end_takeover()
        self._tenure.adopt(quorum, adopt.older, self._roll, started_at=self._started_at, granted_through=granted)
        self._endings.trains(m.replica_id for m in quorum.members)
        text = f"Adopted quorum {quorum.id} of {listed([m.replica_id for m in quorum.members])} at {quorum.top}."
        effects: list[LighthouseEffect] = [Note("adopted", text, quorum_id=quorum.id)]
        for record in self._roll:
            inside = record.replica_id in self._tenure.inside
            if inside and record.lost:
                text = f"{record.replica_id} is lost: {record.lost}."
                effects += self._alarm.end_quorum((record.replica_id,), text, spare=record)
            elif inside and record.session is not None and record.quorum_id != quorum.id and not self._tenure.broken:
                text = f"{record.replica_id} never received it: the lighthouse before this one died while sending it."
                effects += self._alarm.end_quorum((), text, spare=record)
            if record.quorum_id not in (0, quorum.id):
                effects += self._alarm.tell(record, f"quorum {quorum.id} has been formed since.")
        return effects + self._grants.release(self._roll, now)

    def _end_takeover(self) -> None:
        self.takeover.end()
        self._noted = ""
