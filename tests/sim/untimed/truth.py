"""What has really happened, as far as the invariants ask: who committed what, and which quorums followed which."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tests.sim.untimed.values import Contribution, Rules, Value, told
from torchft_x.core.types import Quorum, State, group_of

Wrong = tuple[str, str]
"""An invariant and a sentence."""


@dataclass(frozen=True, slots=True)
class Truth:
    """A value; the verbs return the next one and what is wrong."""

    newest: Quorum | None = None  # issued by any lighthouse
    starts: tuple[int, ...] = ()  # quorums that began a new lineage
    closed: frozenset[int] = frozenset()  # quorums in which nothing may be committed any more (I4)
    values: frozenset[tuple[int, State, Value]] = frozenset()  # rank, state: with which parameters it was committed
    left: frozenset[str] = frozenset()  # lives that have left at the end; their processes run, or have ended well (R21)
    job: frozenset[str] = frozenset()  # groups that were members since the newest lineage began
    final: frozenset[tuple[int, int, int, Value]] = frozenset()  # rank, lineage, step: with which parameters

    def issued(
        self,
        quorum: Quorum,
        fresh: bool,
        follows: int,
        able: Collection[str],
        claims: Collection[Wrong],
        processes: Collection[str] = (),
    ) -> tuple[Truth, list[Wrong]]:
        """A quorum is formed. `fresh`: the lighthouse says that a new lineage begins with it.

        `follows`: the newest quorum that this lighthouse knows; `able`: members of the newest one that may commit in it;
        `processes`: those that run of lives that have left at the end.
        """
        wrong, before, closed = list(claims), self.newest, self.closed
        if before is not None:
            if quorum.id <= before.id:
                wrong.append(("I3", f"quorum id {quorum.id} follows {before.id}"))
            if not _carry_on(before, quorum):
                closed = closed | {before.id}
                outside = sorted(set(able) - {m.replica_id for m in quorum.members})
                if outside:
                    wrong.append(("I4", f"nobody carries on what {', '.join(outside)} may still commit in"))
                elif follows == before.id and not fresh:
                    wrong.append(("I4", "a new lineage begins, and nobody says so"))
                fresh = fresh or (follows != before.id and not outside)  # it was over before it was ever heard of
        starts = (*self.starts, quorum.id) if fresh else self.starts
        groups, left, job = frozenset(group_of(m.replica_id) for m in quorum.members), self.left, self.job
        if not fresh:
            job |= groups
        else:
            mine = any(group_of(name) in groups for name in left)  # who has finished a job begins another one
            for name in sorted(left) if not mine else ():
                if name in processes or groups <= job:
                    wrong.append(
                        (
                            "R21",
                            f"a new lineage begins, though {name} {'finishes' if name in processes else 'has finished'} the job",
                        )
                    )
            left, job = frozenset(), groups
        return replace(self, newest=quorum, starts=starts, closed=closed, left=left, job=job), wrong

    def finished(self, name: str) -> Truth:
        """This life has left at the end."""
        return replace(self, left=self.left | {name})

    def failed(self, name: str) -> Truth:
        """Its process has ended with an error after that."""
        return replace(self, left=self.left - {name})

    def committed(
        self, rules: Rules, who: str, rank: int, in_hand: int, state: State, before: Value, value: Value,
        result: tuple[Contribution, ...], size: int,
    ) -> tuple[Truth, list[Wrong]]:  # fmt: skip
        """`in_hand`: the quorum in which it does so; a prepared result may be of an earlier one."""
        wrong: list[Wrong] = []
        step = state.step - 1
        if len(result) < rules.min_replica_size or not result:
            wrong.append(("I7", f"{who} commits {state} with {len(result)} participants"))
        if len(result) != size:
            wrong.append(("I7", f"{who} commits {state}: {len(result)} gradients, divided by {size}"))
        if any(c[1] != step or c[2] != before for c in result):
            parts = ", ".join(f"{g} at {s} with {told(v)}" for g, s, v in result)
            wrong.append(("I1", f"{who} commits {state} from gradients of unequal states: {parts}"))
        for other in sorted(v for r, s, v in self.values if (r, s) == (rank, state) and v != value):
            wrong.append(("I1", f"{who} commits {state} as {told(value)}, another has it as {told(other)}"))
        if in_hand in self.closed:
            wrong.append(("I4", f"{who} commits {state}, but a new lineage has begun since"))
        lineage = sum(first <= in_hand for first in self.starts)
        if rules.final_commits:
            for other in sorted(v for r, g, s, v in self.final if (r, g, s) == (rank, lineage, state.step)):
                if other != value:
                    text = f"{who} commits step {state.step} as {told(value)}, it was committed as {told(other)} before"
                    wrong.append(("A1", text))
        final = self.final | {(rank, lineage, state.step, value)} if rules.final_commits else self.final
        return replace(self, values=self.values | {(rank, state, value)}, final=final), wrong

    def held(self, who: str, rank: int, state: State, value: Value) -> list[Wrong]:
        """I5, R17: who has healed holds the parameters that were committed as this state."""
        known = {v for r, s, v in self.values if (r, s) == (rank, state)}
        if state.step and value not in known:
            return [("I5", f"{who} has healed to {state} and holds {told(value)}, which nobody committed as that")]
        return []


def _carry_on(before: Quorum, quorum: Quorum) -> bool:
    """R9(a). A carrier may have been asked to commit a held result first, and only then stands where it began (R14). Where
    all members are here nobody else can stand anywhere."""
    whole = {m.replica_id: m for m in quorum.members if not m.torn}
    here = [whole[m.replica_id] for m in before.members if m.replica_id in whole]
    carriers = {c.replica_id for c in before.carriers}
    stands = (m.state > before.top or (m.replica_id in carriers and m.state == before.top) for m in here)
    return len(here) == len(before.members) or any(stands)
