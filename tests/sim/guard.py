"""Trouble with the step in hand, as in `train.context.failures`: the first error is kept, and the collectives are released."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchft_x.core.commit.step import over_error
from torchft_x.core.heal import Plan
from torchft_x.core.messages.group import PushRevoked
from torchft_x.errors import CollectiveError, DeadlineError, UnreachableError

if TYPE_CHECKING:
    from tests.sim.rank_node import RankNode


class Guard:
    """Of one rank."""

    def __init__(self, rank: RankNode) -> None:
        self._rank = rank
        self._config_id = 0  # of the newest configure
        self._broken = True  # the process group must be made anew even if its members stay

    def must_configure(self, plan: Plan) -> bool:
        """Decide it, once per quorum; a quorum that is known to be over is not worth it."""
        if self._rank.step.error is not None:
            self._broken = True
            return False
        if plan.config_id == self._config_id and not self._broken:
            return False
        self._config_id, self._broken = plan.config_id, True
        return True

    def configured(self, error: Exception | None, plan: Plan) -> None:
        if error is not None:
            self.fail(error, plan.quorum_id)
        else:
            self._broken = self._rank.step.error is not None

    def fail(self, error: Exception, quorum_id: int | None = None) -> None:
        rank = self._rank
        if rank.step.fail(error, quorum_id, self._suspects(error)):
            rank.world.note(rank.process.name, "step fails: {}", error)
            self.abort(str(error))

    def over(self, push: PushRevoked) -> None:
        rank = self._rank
        if rank.step.over(push.quorum_id, over_error(push.quorum_id, push.lost, push.reason)):
            rank.world.note(rank.process.name, "hears that {} is over", rank.world.trace.name(push.quorum_id))
            self.abort(push.reason)

    def abort(self, reason: str) -> None:
        """Release the collectives in flight: this rank's, and by the closed connections the others'."""
        rank, self._broken = self._rank, True
        if rank.mesh is None:
            return
        rank.world.fabric.close(rank, rank.mesh)
        error = CollectiveError(f"it was released: {reason}")
        rank.world.after(rank.world.config.inside[0], rank.process, rank.on_mesh_error, rank.mesh, error)

    def _suspects(self, error: Exception) -> tuple[str, ...]:
        plan = self._rank.plan
        if plan is None or not isinstance(error, (CollectiveError, DeadlineError, UnreachableError)):
            return ()
        named = tuple(getattr(error, "suspects", ()))
        return named or tuple(r for r in plan.replica_ids if r != self._rank.who)
