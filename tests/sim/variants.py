"""Known wrong variants of core: each leaves one rule of the protocol out, as a context manager that patches core.

``with VARIANTS["R9a any"].patch(): ...`` works for all users of core's machines: the simulated cluster or a test. No
product code knows of them. ``python -m tests.sim.variants`` runs each one against the test that must catch it.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any
from unittest import mock

from tests.sim import swarm
from tests.sim.invariants import Violation
from tests.sim.transfer import Fetch, Transfers
from torchft_x.core import quorum as rule
from torchft_x.core import types
from torchft_x.core.admission.finished_job import FinishedJob
from torchft_x.core.commit import step
from torchft_x.core.commit.step import Step
from torchft_x.core.commit.two_phase import TwoPhaseCommit
from torchft_x.core.data import deal as dealing
from torchft_x.core.data.deal import Deal
from torchft_x.core.data.state import DataState
from torchft_x.core.group.lease import HeldQuorum
from torchft_x.core.group.machine import Group
from torchft_x.core.in_doubt import Settlement, settle
from torchft_x.core.lighthouse import recover
from torchft_x.core.lighthouse.machine import Lighthouse
from torchft_x.core.lighthouse.recover import Adopt, NothingToAdopt, RestartRecovery
from torchft_x.core.membership.current_quorum import OpenQuorums, QuorumState
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.membership.record import MemberRecord
from torchft_x.core.messages.lighthouse import CloseSession, Extend, Join
from torchft_x.core.types import Computed, JoinReason, Member, Part, Quorum, State

Patch = Callable[[], AbstractContextManager[Any]]


class NotCaughtError(AssertionError):
    """Failure of the tests: a wrong variant of core passed the test that must catch it."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A rule that is left out, the resulting harm, and the test that detects it."""

    name: str
    left_out: str
    harm: str
    caught_by: str | int
    """Test of tests/unit/core, as "module:function" or "module:Class.method"; or a seed of the swarm."""
    patch: Patch
    """Patch core, and restore it at the end of the context."""

    def catch(self) -> str:
        """Run the test that must catch this variant. Return how it was caught; raise `NotCaughtError` if it was not."""
        by = self.caught_by
        run = partial(swarm.run, by) if isinstance(by, int) else _test(by)
        run()  # the test passes on the complete protocol
        with self.patch():
            try:
                run()
            except Exception as e:  # any exception counts: the assertion's, or that of a missing result
                return found_by(e) if isinstance(e, Violation) else str(by)
        raise NotCaughtError(f"{self.name} ({self.left_out}): {by} does not notice it.")


def hunt(patch: Patch, seeds: Iterable[int], seconds: float) -> Violation | None:
    """Run the swarm's seeds on a variant for at most `seconds` of processor time. Return the first violation found."""
    end = time.process_time() + seconds
    with patch():
        for seed in seeds:
            if time.process_time() > end:
                break
            try:
                swarm.run(seed)
            except Violation as e:
                return e
    return None


def found_by(found: Violation) -> str:
    return f"{found.invariant} with seed {found.seed}: {found.what}"


def _test(name: str) -> Callable[[], None]:
    """Return a test function, or a method of a new instance of its class, bound to the first of its parameters."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(f"tests.unit.core.{module}")
    *classes, function = path.split(".")
    for part in classes:
        found = getattr(found, part)()
    test: Callable[..., None] = getattr(found, function)
    first = {m.args[0]: m.args[1][0] for m in getattr(test, "pytestmark", ()) if m.name == "parametrize"}
    return partial(test, **first)


def patched(*patches: tuple[Any, str, Any]) -> Patch:
    """Return a patch that sets these attributes, and restores them at the end of its context."""

    @contextmanager
    def patch() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, value in patches:
                stack.enter_context(mock.patch.object(owner, name, value))
            yield

    return patch


# --- replacements of rules -------------------------------------------------------------------------------------------

_begin_two_phase, _served = TwoPhaseCommit.__init__, Transfers._served
_begin_tenure, _close, _fence = QuorumState.__init__, MemberTable.close, Lighthouse._fence
_on_hello, _misfit = Lighthouse._on_hello, step.misfit
_on_ask, _on_grant, _send_join, _vote = Group._on_ask, Group._on_grant, Group._send_join, Step.vote
_conclude, _healed, _commit, _moved = Step.conclude, Step.healed, Step._commit, DataState.commit


def _ids_from_one(self: QuorumState, first_id: int, *rest: Any) -> None:
    _begin_tenure(self, 1, *rest)


def _keep_the_join(self: MemberTable, record: MemberRecord) -> None:
    join = record.join
    _close(self, record)
    record.join = join
    self.on_change(record)


def _go_on_while_asking(self: Group, ask: Any, now: float) -> list[Any]:
    effects = _on_ask(self, ask, now)
    held = self._held_quorum
    if self._join is None or not self._asks or not held.usable(now) or self._state.committed_in != held.quorum_id:
        return effects
    calls = tuple(self._asks[rank].call for rank in sorted(self._asks))
    self._asks.clear()
    return [*effects, self._answer(calls, base=self._state)]


def _by_step_alone(self: Quorum) -> Settlement:
    whole = [m for m in self.members if not m.torn]
    top = max((m.state for m in whole), default=State())
    return Settlement(top, tuple(m for m in whole if m.state.step == top.step))


def _vote_by_step_alone(self: Step) -> Any:
    top = self.top
    if self.state.step == top.step:
        self.top = self.state
    try:
        return _vote(self)
    finally:
        self.top = top


def _never_adopt(members: Any, nothing: State) -> Settlement:
    settled = settle(members, nothing)
    return settle([replace(m, prepared=None) for m in members], nothing) if settled.adopted else settled


def _heirs_at(stands: Callable[[State, State], bool], cur: Quorum, whole: Mapping[str, Member]) -> bool:
    carriers = {c.replica_id for c in cur.carriers}
    inside = [m for m in whole.values() if cur.member(m.replica_id) is not None]
    return any(m.replica_id in carriers or stands(m.state, cur.top) for m in inside)


def _first_come(_config: Any, reports: Mapping[str, Any], **_times: float) -> NothingToAdopt | Adopt:
    newest = recover._newest(reports)
    return Adopt(newest) if newest is not None else NothingToAdopt()


_decide_restart = recover.decide_restart


def _only_who_received_it(config: Any, reports: Mapping[str, Any], **times: float) -> Any:
    newest = recover._newest(reports)
    reports = {r: report for r, report in reports.items() if newest is not None and report.id == newest.id}
    return _decide_restart(config, reports, **times)


def _superseded_is_dead(self: Lighthouse, older: MemberRecord | None, by: str) -> list[Any]:
    effects = _fence(self, older, by)
    if older is not None:
        older.proof = "it was superseded"
    return effects


def _wait_for_a_grant(self: Group, now: float, *, new_session: bool = False) -> list[Any]:
    """Make a member whose lease has ended inside its grant wait for a new one, instead of asking."""
    held, join = self._held_quorum, self._join
    expired = join is not None and join.reason is JoinReason.REJOINED and not held.over and held.lease_until < now
    if expired and self._state.committed_in == held.quorum_id and self._state.step < held.granted_through:
        return []
    return _send_join(self, now, new_session=new_session)


def _grant_is_final(self: Group, grant: Extend, now: float) -> list[Any]:
    return self._run_on(now) if self._held_quorum.extend(grant) else []


def _a_second_join(self: Group, ask: Any, now: float) -> list[Any]:
    before = self._join
    effects = _on_ask(self, ask, now)
    unsent = before is not None and self._join not in (None, before)
    return effects + (_send_join(self, now) if unsent and not any(isinstance(e, Join) for e in effects) else [])


def _both_streams(self: Lighthouse, hello: Any, now: float) -> list[Any]:
    return [e for e in _on_hello(self, hello, now) if not isinstance(e, CloseSession)]


def _owed_without_commit(self: Group, ask: Any, now: float) -> list[Any]:
    self._commit = None
    return _on_ask(self, ask, now)


def _no_vote_between_groups(self: TwoPhaseCommit, *args: Any, **options: Any) -> None:
    _begin_two_phase(self, *args, **{**options, "between_groups": False})


def _serve_live(self: Transfers, fetch: Fetch) -> None:
    fetch.copy = fetch.server.copy
    _served(self, fetch)


def _moves_on_a_drop(self: Step, commit: bool, reason: str = "", *, undecided: bool = False) -> Any:
    vote = self._vote
    outcome = _conclude(self, commit, reason, undecided=undecided)
    if not commit and not undecided and vote.deal is not None:
        self.data = self.data.commit(vote.deal.slots, self.data_options)
    return outcome


_ALL = [
    Variant(
        name="R1", left_out="ids restart with the lighthouse",
        harm="rendezvous keys of a dead process group match; (step, committed_in) names two states",
        caught_by="lighthouse.test_machine:TestTakeover.test_R1_new_ids_are_above_all_reported",
        patch=patched((QuorumState, "__init__", _ids_from_one), (QuorumState, "raise_ids", lambda self, heard: None)),
    ),
    Variant(
        name="R3", left_out="a join outlives its session",
        harm="a quorum says of a member where it stood before",
        caught_by="lighthouse.test_machine:TestSessions.test_R3_the_newest_session_replaces_the_older_and_its_join",
        patch=patched((MemberTable, "close", _keep_the_join)),
    ),
    Variant(
        name="R4", left_out="a member that has joined goes on",
        harm="a quorum says of a member where it stood before",
        caught_by="commit.test_two_phase:test_R4_nothing_is_committed_after_a_join",
        patch=patched((Group, "_on_ask", _go_on_while_asking), (Group, "_frozen", property(lambda self: self._end))),
    ),
    Variant(
        name="step alone", left_out="states are compared by the step alone (no vote)",
        harm="two carriers with different weights average their gradients",
        caught_by="test_wrong_variants:test_the_step_alone_does_not_name_a_state",
        patch=patched((Quorum, "settled", property(_by_step_alone)), (Step, "vote", _vote_by_step_alone)),
    ),
    Variant(
        name="vote off", left_out="no vote between groups",
        harm="a step is committed twice, differently; the first is rolled back",
        caught_by="commit.test_two_phase:test_a_commit_takes_both_rounds",
        patch=patched((TwoPhaseCommit, "__init__", _no_vote_between_groups)),
    ),
    Variant(
        name="R14 adopt", left_out="a prepared result is forgotten",
        harm="a final step is redone although a survivor held the right bits",
        caught_by="test_in_doubt:test_cut_off_after_the_vote_the_result_is_adopted",
        patch=patched((types, "settle", _never_adopt)),
    ),
    Variant(
        name="R9a any", left_out="any live joiner may follow a quorum",
        harm="split brain: two histories",
        caught_by="test_quorum:TestSuccession.test_R9a_a_stranger_does_not_whatever_its_state",
        patch=patched((rule, "_heirs", lambda cur, whole: True)),
    ),
    Variant(
        name="R9a member", left_out="any member of a quorum may follow it, carrier or not",
        harm="all progress is lost while a carrier lives",
        caught_by="test_quorum:TestSuccession.test_R9a_membership_is_not_enough",
        patch=patched((rule, "_heirs", lambda cur, whole: any(m.replica_id in whole for m in cur.members))),
    ),
    Variant(
        name="R9a healed", left_out="who has healed to a quorum's top may follow it before it has committed in it",
        harm="a final step, committed with the healer's zeros, is redone without it",
        caught_by="test_quorum:TestSuccession.test_R9a_healing_to_the_top_is_not_enough",
        patch=patched((rule, "_heirs", partial(_heirs_at, State.__ge__))),
    ),
    Variant(
        name="R9a adopted", left_out="a carrier that has yet to commit a held result follows the quorum in which it was to",
        harm="a final step is redone: another member has committed that result, and this one meets somebody who denies it",
        caught_by="test_quorum:test_a_carrier_that_has_not_adopted_yet_follows_nothing",
        patch=patched((rule, "_heirs", partial(_heirs_at, State.__gt__))),
    ),
    Variant(
        name="R8", left_out="a fresh lighthouse serves the first caller",
        harm="split brain: two histories",
        caught_by="lighthouse.test_machine:TestTakeover.test_a_report_within_the_grace_is_heeded",
        patch=patched((recover, "decide_restart", _first_come), (RestartRecovery, "surely_waits", lambda self: False)),
    ),
    Variant(
        name="R8 lease", left_out="members whose lease has ended vouch for the newest quorum, too",
        harm="split brain: the lighthouse before may have let others go on without them",
        caught_by="lighthouse.test_recover:test_a_lease_vouches_while_anything_is_left_of_it",
        patch=patched((recover, "_vouches", lambda report, member: not member.library or report is not None)),
    ),
    Variant(
        name="R2/R9b", left_out="superseded counts as dead",
        harm="split brain: the older attempt goes on in its lease",
        caught_by="lighthouse.test_machine:TestAttempts.test_R9b_the_lease_counts_from_the_last_quorum",
        patch=patched((Lighthouse, "_fence", _superseded_is_dead)),
    ),
    Variant(
        name="R13", left_out="the lease is checked when a step begins, not when it is committed",
        harm="two histories for one step",
        caught_by="test_wrong_variants:test_R13_the_lease_is_checked_at_the_commit",
        patch=patched((HeldQuorum, "ended", lambda self, now: "")),
    ),
    Variant(
        name="R7", left_out="grants grow though a change is pending",
        harm="a newcomer is passed over without end",
        caught_by="lighthouse.test_grants:TestLighthouse.test_R5_a_newcomer_stops_the_growth_and_all_meet_at_one_step",
        patch=patched((QuorumState, "pending", property(lambda self: not self._steady))),
    ),
    Variant(
        name="R21", left_out="who comes late may begin anew as soon as all others have left",
        harm="a job that is being finished, or is finished, is trained again",
        caught_by="admission.test_finished_job:test_when_it_has_ended_well_the_late_group_is_stopped",
        patch=patched((FinishedJob, "objection", lambda self, decision, now: None)),
    ),
    Variant(
        name="R17", left_out="a source serves its live state",
        harm="a step is applied twice in the healer",
        caught_by=16,
        patch=patched((Transfers, "_served", _serve_live)),
    ),
    Variant(
        name="expired", left_out="a member with a session and no lease waits for a grant instead of joining",
        harm="stuck: the lighthouse waits for its join",
        caught_by="lighthouse.test_grants:TestGroup.test_a_grant_that_comes_after_the_lease_is_answered_by_another_join",
        patch=patched((Group, "_send_join", _wait_for_a_grant)),
    ),
    Variant(
        name="late grant", left_out="a grant that comes after the lease answers the join for good",
        harm="stuck: the group waits for an answer that the lighthouse has given",
        caught_by="lighthouse.test_grants:TestGroup.test_R3_a_grant_that_answers_an_earlier_request_does_not_answer_the_join",
        patch=patched((Group, "_on_grant", _grant_is_final)),
    ),
    Variant(
        name="second join", left_out="a group that asks again for another reason sends a second join on the session",
        harm="the second is taken as fresh after the first was answered: a quorum says where a member stood before",
        caught_by="group.test_machine:TestAsking.test_R3_one_join_at_a_time",
        patch=patched((Group, "_on_ask", _a_second_join)),
    ),
    Variant(
        name="late hello", left_out="a stream that was replaced stays open",
        harm="stuck: a late hello of a broken stream replaces the living one, on which nobody listens then",
        caught_by="lighthouse.test_machine:TestSessions.test_R3_the_replaced_stream_is_closed",
        patch=patched((Lighthouse, "_on_hello", _both_streams)),
    ),
    Variant(
        name="broken call", left_out="a rank whose call broke is not told what the others committed by the quorum",
        harm="ranks of one group diverge, and its gradients spoil those of all groups",
        caught_by="commit.test_two_phase:test_I2_a_rank_whose_call_broke_commits_what_the_group_has_committed",
        patch=patched((Group, "_on_ask", _owed_without_commit)),
    ),
    Variant(
        name="R9 chain", left_out="a quorum that was sent is followed, and not those before it",
        harm="split brain: whoever alone received it goes on, and so do those that never heard of it",
        caught_by="membership.test_open_quorums:test_R9_of_two_groups",
        patch=patched((OpenQuorums, "leave", lambda self, quorum: None)),
    ),
    Variant(
        name="I10 drop", left_out="the position in the data stays when a step is dropped",
        harm="the samples of the step are never trained",
        caught_by="data.test_outcomes:test_a_drop_stays",
        patch=patched((Step, "conclude", _moves_on_a_drop)),
    ),
    Variant(
        name="I10 lost", left_out="slots of a lost group become debt",
        harm="its samples are never trained",
        caught_by="data.test_state:test_what_a_commit_leaves_out_is_trained_first",
        patch=patched((DataState, "commit", lambda self, slots, options: _moved(
            self, ((0, max(options.slots, slots[-1][1])),), options))),
    ),
    Variant(
        name="I10 overlap", left_out="a claim that overlaps with another one counts for nothing",
        harm="samples are trained twice in one step",
        caught_by="data.test_deal:test_a_second_holder_of_a_slot_computes_others",
        patch=patched((dealing, "overlap", lambda one, other: False)),
    ),
    Variant(
        name="I10 heal", left_out="a heal brings the source's position in the data",
        harm="the group trains on other samples than those that the others count",
        caught_by="data.test_outcomes:test_a_heal_brings_the_sources_position",
        patch=patched((Step, "healed", lambda self, state, batches, data=None: _healed(
            self, state, batches, self.data))),
    ),
    Variant(
        name="I10 top", left_out="claims count at the top only",
        harm="a step has fewer slots, as gradients of another step are taken for its own",
        caught_by="data.test_deal:test_nobody_holds_what_an_adopted_step_was_made_of",
        patch=patched((dealing, "_counts", lambda member, top: True)),
    ),
    Variant(
        name="I10 late", left_out="a late commit moves the position past the slots of the quorum in which it was reduced",
        harm="samples are trained twice",
        caught_by="data.test_outcomes:test_a_late_commit_moves_past_the_slots_of_the_quorum_in_which_it_was_reduced",
        patch=patched((Step, "_commit", lambda self, vote: _commit(self, replace(vote, deal=self.deal)))),
    ),
    Variant(
        name="I10 redo", left_out="gradients are reduced again only if they are of the slots that the quorum expects",
        harm="samples are trained twice, or never",
        caught_by="data.test_outcomes:test_gradients_of_other_slots_are_not_reduced_again",
        patch=patched((step, "misfit", lambda kept, part, deal, *, all_keep: "")),
    ),
]  # fmt: skip
VARIANTS = {variant.name: variant for variant in _ALL}
SLOW_TAKEOVER = patched(
    (recover, "decide_restart", _only_who_received_it), (RestartRecovery, "surely_waits", lambda self: False)
)
"""R8 without the reports of members that never received the newest quorum: safe but slow, so that only a clock detects
it.
"""

ANY_PART = VARIANTS["I10 redo"].patch
"""I9 left out: a step is redone with gradients of any part. Only a model with spares, or with heals in place, detects
it.
"""


def _any_number(kept: Computed, part: Part, deal: Deal | None, *, all_keep: bool) -> str:
    return _misfit(kept, part, deal, all_keep=all_keep) if kept.part.rank is None else ""


ANY_NUMBER = patched((step, "misfit", _any_number))
"""I9 weakened to exclude only gradients that were computed without a number: two are counted for one number."""


def main() -> None:
    """Run each variant, or those named, against the test that must catch it, or against the swarm."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.variants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="variants (default: all)")
    parser.add_argument(
        "--swarm", type=float, default=0.0, metavar="SECONDS", help="of the processor, for each variant"
    )
    options = parser.parse_args()
    for name in options.names or VARIANTS:
        variant = VARIANTS[name]
        found = hunt(variant.patch, count(), options.swarm) if options.swarm else None
        how = variant.catch() if not options.swarm else "-" if found is None else found_by(found)
        print(f"{name:12} {variant.left_out}\n{'':12} {how[:130]}", flush=True)


if __name__ == "__main__":
    main()
