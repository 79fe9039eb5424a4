"""The heal phase of a rank: what it offers, what it fetches, and when it loads that, as in `train.step.quorum_round`.

If the training thread waits, the fetched state is loaded at once. Otherwise it is held until the vote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.base import fold
from tests.sim.data import Copy
from torchft_x.core.heal import QuorumPlan
from torchft_x.core.training.heal_limits import HealWait
from torchft_x.core.types import State, group_of
from torchft_x.errors import CollectiveError, StepError, TorchftXError

if TYPE_CHECKING:
    from tests.sim.rank_node import RankNode


LOOK = 0.1  # as in train.heal.state_exchange


class Healing:
    """Heals of one rank, over all of its steps: those that it serves and those that it needs."""

    def __init__(self, rank: RankNode) -> None:
        self.snapshot: tuple[State, Copy] | None = None  # (name, contents) offered to healers, frozen (R17)
        self.owed = 0  # number of readers that were promised the snapshot and have not come
        self.done = False  # in the present quorum nothing has to be fetched any more
        self._signs = 0  # number of checks in which readers made progress
        self._rank = rank
        self._in_place = False  # the training thread waits for the heal
        self._fetched: tuple[State, Copy] | None = None  # state that has come and is not loaded yet

    def forget(self) -> None:
        """Reset for a new step."""
        self.done, self._fetched = False, None

    def begin(self, plan: QuorumPlan, *, in_place: bool) -> None:
        """Offer what the quorum's healers need from us, then fetch what we need."""
        rank, world = self._rank, self._rank.world
        self._in_place = in_place
        whole = rank.step.state == plan.top and not rank.step.torn
        offers = plan.offers and whole
        world.transfers.offer(rank, (plan.snapshot, rank.copy) if offers else None, len(plan.dst_ranks))
        quorum = rank.node.machine.quorum
        carriers = quorum.carriers if quorum is not None else ()
        given_up = rank.failures.given_up
        for member in carriers if given_up else ():
            given_up.pop(group_of(member.replica_id), None)
        if offers and plan.dst_ranks and len(carriers) < len(plan.replica_ids):
            names = tuple(plan.replica_ids[r] for r in plan.dst_ranks)
            all_heals = len(names) == plan.replica_world_size - plan.max_world_size and len(rank.node.ranks) == 1
            copying = HealWait(world.now, max(given_up[group_of(n)] for n in names), all_heals=all_heals)
            world.after(LOOK, rank.process, self._look, copying, plan, names)
        if not plan.heal:
            self.done = True
            return
        rank.deadlines.arm("fetch", world.config.timeout)
        # Before the first commit nobody else may hold our weights: what comes then is loaded whole or not at all.
        world.transfers.fetch(rank, plan, in_place=in_place and plan.top.step > 0)
        world.reach(rank.node, "fetch")

    def _look(self, copying: HealWait, plan: QuorumPlan, names: tuple[str, ...]) -> None:
        """Check at a source whether its readers make progress, and fail the step if they don't.

        It does as `train.heal.state_exchange` does.
        """
        rank, world = self._rank, self._rank.world
        if rank.plan is not plan:
            return
        moves, reads = world.transfers.readers_of(rank)
        self._signs += moves
        done = not reads and self.owed <= 0
        still = copying.poll(
            world.now, signs=self._signs, done=done, lateness=rank.budget.lateness,
            waits_since=rank.budget.waits_since,
        )  # fmt: skip
        if not still:
            world.after(LOOK, rank.process, self._look, copying, plan, names)
            return
        rank.failures.given_up.update(map(group_of, names if done else ()))
        world.checker.figures["heals given up"] += 1
        rank.failures.fail(CollectiveError(f"{', '.join(names)} heals, and nothing has moved for {still:.1f} s.", names),
                        plan.quorum_id)  # fmt: skip

    def on_fetched(self, state: State, copy: Copy) -> None:
        self._rank.deadlines.disarm("fetch")
        self._fetched = (state, copy)
        self.done = True
        if self._in_place:
            self.load()
        self._rank.on_healed()

    def on_failed(self, error: TorchftXError, *, torn: bool) -> None:
        self._rank.deadlines.disarm("fetch")
        self.done = True
        self._fail(error, torn=torn)
        self._rank.on_healed()

    def load(self) -> None:
        """Pass the fetched state, if there is one, to the user's load_state_dict."""
        if self._fetched is None:
            return
        (state, copy), self._fetched = self._fetched, None
        rank = self._rank
        if rank.world.breaks_load(rank):
            self._fail(StepError("the user's load_state_dict failed"), torn=True)
            return
        rank.failures.healed(state, 0, rank.load(copy))
        rank.held.healed(state)
        rank.world.note(rank.process.name, "healed to {}", state)
        rank.world.checker.on_held(rank, state, copy.value)

    def _fail(self, error: Exception, *, torn: bool) -> None:
        rank = self._rank
        rank.world.note(rank.process.name, "did not heal{}: {}", ", torn" if torn else "", error)
        if torn:
            rank.value = fold("torn", rank.process.name, rank.world.next_id())
        rank.failures.heal_failed(error, torn=torn)
