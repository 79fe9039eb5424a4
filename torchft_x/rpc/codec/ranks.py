"""Codecs of ranks' calls to their group server: torchft's ManagerService with our fields. See `messages`."""

from __future__ import annotations

from torchft_x.core.heal import QuorumPlan
from torchft_x.core.messages import group as m
from torchft_x.core.messages.group import QuorumReply
from torchft_x.core.types import Quorum
from torchft_x.errors import RefusedError
from torchft_x.rpc.codec import messages
from torchft_x.rpc.codec.field_limits import reason_to_join
from torchft_x.rpc.codec.generic import Codec, parse
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.transport import limits

# --- quorums ---------------------------------------------------------------------------------------------------------


_ASK = Codec(
    peer_pb.ManagerQuorumRequest,
    m.Ask,
    names={"rank": "group_rank", "handle": "reconfigure_handle"},
    limits={"reason": reason_to_join},
    apart=["state", "step", "committed_in", "init_sync", "ours", "holds", "traits"],
)


def ask_to_proto(v: m.Ask, *, init_sync: bool, ours: bool, holds: int = 0) -> peer_pb.ManagerQuorumRequest:
    p: peer_pb.ManagerQuorumRequest = _ASK.encode(v)
    p.step, p.committed_in = v.state.step, v.state.committed_in
    p.init_sync, p.ours, p.holds = init_sync, ours, holds
    p.traits = b"" if v.traits is None else messages.TRAITS.encode(v.traits).SerializeToString()
    return p


def ask_from_proto(call: int, p: peer_pb.ManagerQuorumRequest) -> m.Ask:
    traits = messages.TRAITS.read(p.traits, "traits") if p.traits else None
    state = messages.STATE.decode(p)  # the request has its fields
    return _ASK.decode(p, call=call, state=state, traits=traits)


def plan_bytes(plan: QuorumPlan) -> bytes:
    """Encode a ManagerQuorumResponse for a rank that runs torchft."""
    return bytes(
        peer_pb.ManagerQuorumResponse(
            quorum_id=plan.config_id,
            recover_src_manager_address=plan.sources[0].address if plan.heal and plan.sources else "",
            recover_src_replica_rank=plan.source_rank,
            recover_dst_replica_ranks=plan.dst_ranks,
            store_address=plan.store_address,
            max_step=plan.top.step,
            max_replica_rank=plan.max_replica_rank,
            max_world_size=plan.max_world_size,
            replica_rank=plan.replica_rank,
            replica_world_size=plan.replica_world_size,
            heal=plan.heal,
            commit_failures=plan.commit_failures,
            replica_ids=plan.replica_ids,
            reconfigure_handles=plan.handles,
        ).SerializeToString()
    )


def quorum_reply_bytes(reply: QuorumReply, quorum: bytes, *, holds: int, lease_left: float) -> bytes:
    """Encode the answer to a rank of ours.

    `quorum` is packed, and left out if the rank `holds` that quorum (id) already. `lease_left` is in seconds."""
    known = holds != 0 and reply.quorum.id == holds
    return bytes(
        peer_pb.ManagerQuorumResponse(
            quorum=b"" if known else quorum,
            holds=holds if known else 0,
            lease_left_s=lease_left,
            base=b"" if reply.base is None else messages.STATE.encode(reply.base).SerializeToString(),
            commit=b"" if reply.commit is None else messages.PREPARED.encode(reply.commit).SerializeToString(),
            again=reply.again,
        ).SerializeToString()
    )


def quorum_reply_from_bytes(data: bytes, held: Quorum | None, *, who: str, now: float) -> QuorumReply:
    """Decode an answer to this rank, which has the quorum `held` already. Raises `RefusedError`.

    `who` names the server in errors, and `now` is in this process's monotonic seconds."""
    p = parse(peer_pb.ManagerQuorumResponse, data, "answer")
    if p.quorum:
        quorum = messages.unpack(p.quorum)
    elif held is not None and p.holds == held.id:
        quorum = held
    else:
        raise RefusedError(f"The {who} is not torchft_x's; all ranks of a group need the same library.")
    return QuorumReply(
        quorum,
        now + limits.check_seconds(p.lease_left_s, "lease"),
        messages.STATE.read(p.base, "base") if p.base else None,
        messages.PREPARED.read(p.commit, "prepared result") if p.commit else None,
        p.again,
    )


# --- votes of ranks that run torchft ---------------------------------------------------------------------------------

VOTE = Codec(peer_pb.ShouldCommitRequest, m.Vote, names={"ok": "should_commit", "rank": "group_rank"})
