"""What a training script holds: a rank's part in fault-tolerant training.

The Manager checks arguments, hands each call on, and has no rules: `StepLoop` goes through the steps, `QuorumRound`
through one quorum; core.commit.step decides about this rank's step, core.heal who copies state from whom.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.futures import Future

from torchft_x.comm.dense import check_dense
from torchft_x.comm.quantized.collectives import check_quantized
from torchft_x.comm.quantized.format import format_of
from torchft_x.core.commit.step import Phase, Step
from torchft_x.core.heal import WorldSizeMode
from torchft_x.core.types import group_of
from torchft_x.durations import Seconds, seconds
from torchft_x.durations import seconds as seconds_of
from torchft_x.errors import ConfigError
from torchft_x.train.context.context import RankContext, assemble
from torchft_x.train.context.fingerprint import FingerprintBuilder
from torchft_x.train.context.futures import ExceptionWithTraceback, wrap_future
from torchft_x.train.context.state_dicts import DEFAULT_KEY, StateDicts
from torchft_x.train.heal.own_copy import copy_last, copy_now
from torchft_x.train.heal.state_exchange import read_state
from torchft_x.train.lazy_compiler import in_compiled_code
from torchft_x.train.loader_workers import spare_loader_workers
from torchft_x.train.setup.excepthook import end_with_a_sentence
from torchft_x.train.setup.options import resolve
from torchft_x.train.step.quorum_round import QuorumOptions
from torchft_x.train.step.step_loop import StepLoop
from torchft_x.transfer.format.flatten import check_sendable
from torchft_x.transfer.http.transport import HTTPTransport
from torchft_x.transfer.transport import CheckpointTransport

_DEPRECATED_KEY = "set_state_dict_fns"  # the peer's key of the functions given through the deprecated method


class Manager:
    """One rank's part in fault-tolerant training over replica groups.

    Every rank of every group makes one. A step is ``start_quorum()`` (`Optimizer.zero_grad` calls it), reductions
    (`DistributedDataParallel`, or `allreduce`), ``should_commit()`` (`Optimizer.step`). The peer's class of this name
    has the same arguments and methods; times may be seconds or timedelta. Unlike the peer's, an argument beats its
    environment variable, so times are None by default (60 s unless TORCHFT_TIMEOUT_SEC, TORCHFT_QUORUM_TIMEOUT_SEC,
    TORCHFT_CONNECT_TIMEOUT_SEC say otherwise).

    Args:
        pg: reconfigurable process group between the replica groups (e.g. `ProcessGroupGloo`). The Manager makes it anew
            whenever the members change.
        load_state_dict, state_dict: load and return everything that must be equal in all groups (model, optimizer,
            scheduler, ...). More pairs: `register_state_dict_fn`.
        min_replica_size: fewest participating groups for a commit; TORCHFT_X_MIN_REPLICAS, if larger (a job's
            --min_replicas).
        use_async_quorum: ask for a quorum beside the forward pass; a group that heals contributes from the next quorum
            on. If False, `start_quorum` waits and heals, and the healed group contributes at once. Equal in all groups.
        timeout: of reductions, healing and the vote. If it is not set, ranks of one group wait for each other for ten minutes.
        quorum_timeout: of `start_quorum`. If it is not set: a minute, in which the time does not count while the lighthouse
            says what it waits for (an hour in all), or is away (three minutes in all).
        connect_timeout: for finding the group's store, its server and the lighthouse.
        rank, world_size: of this process in its group (RANK, WORLD_SIZE; 0 and 1 if unset).
        world_size_mode: DYNAMIC: every healthy group counts. FIXED_WITH_SPARES: at most `min_replica_size` do.
        store_addr, store_port: of the group's store (MASTER_ADDR, MASTER_PORT).
        lighthouse_addr: ``http://host:port`` (TORCHFT_LIGHTHOUSE); needed on rank 0.
        replica_id: the group's name, stable over restarts (REPLICA_GROUP_ID). A nonce is added.
        port: of the group server (TORCHFT_MANAGER_PORT; any free one).
        hostname: name or address by which other hosts reach this one (TORCHFT_X_ADVERTISE_HOST; see docs/addresses.md).
        heartbeat_interval: without effect, as the session to the lighthouse needs no tuning; but one that is no shorter
            than the lighthouse's heartbeat timeout is refused, and so is a shorter quorum_timeout.
        checkpoint_transport: how state travels in a heal; `HTTPTransport` if None. One of your own may have the peer's
            interface (`torchft_x.transfer.torchft_transports`).
        init_sync: at step 0 all groups take one group's weights.
        max_retries: failed commits in a row that are forgiven; then `should_commit` raises `StepError`.
        quorum_retries: without effect; the group server reconnects by itself.
        token: the run's token (TORCHFT_X_TOKEN, TORCHFT_X_TOKEN_FILE).
        may_differ: names of traits (see `declare`) in which this group may differ from the others, e.g.
            ``("group world size",)`` if it has another number of ranks on purpose.
        commit_vote: the groups vote with each other before each commit, so that a committed step is final and results
            that differ are noticed; costs one tiny all-reduce a step. Equal in all groups.
        keep_gradients: a step whose reduction failed is reduced again among those that are left, with the gradients that
            were computed already. `DistributedDataParallel` keeps them until the next forward: one copy more than with
            False, which drops such a step.
        vote_in_backward: `DistributedDataParallel` decides a step at the end of ``backward()``, so that what fails is
            reduced again before anybody clips or unscales. False: `should_commit` decides; for scripts that throw a
            step away after ``backward()`` (`report_error`, or no `should_commit`), which are found out the first time
            they do. Equal in all groups.
        straggler_timeout: how much later than this group another one may come to a reduction or a vote, until the others go on
            without it (it comes back, and copies their state). If it is not set (TORCHFT_X_STRAGGLER_TIMEOUT): 2 s, or five
            times what this group itself needed since the last step, if that is longer. Never longer than `timeout`.
        rehearse: where others train already, the first step is made before this group asks to join, and dropped
            (`should_commit` is False): what compiles, loads or hangs in it holds nobody up. Equal on all ranks of a group.
        compare_states: every 8 commits the groups compare a sixteenth of the parameters and optimizer states that
            `OptimizerWrapper` knows, in turn. A group whose bits are not those of most copies the others'.

    Raises:
        ConfigError: missing or senseless arguments. AddressError, UnreachableError, TokenError: about the lighthouse,
            within seconds where the address can't be right.
    """

    def __init__(
        self,
        pg: Any,
        load_state_dict: Callable[[Any], None] | None,
        state_dict: Callable[[], Any] | None,
        min_replica_size: int,
        use_async_quorum: bool = True,
        timeout: Seconds | None = None,
        quorum_timeout: Seconds | None = None,
        connect_timeout: Seconds | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        world_size_mode: WorldSizeMode = WorldSizeMode.DYNAMIC,
        store_addr: str | None = None,
        store_port: int | None = None,
        lighthouse_addr: str | None = None,
        replica_id: str | None = None,
        port: int | None = None,
        hostname: str | None = None,
        heartbeat_interval: Seconds | None = None,
        checkpoint_transport: CheckpointTransport[Any] | None = None,
        init_sync: bool = True,
        max_retries: int | None = None,
        quorum_retries: int | None = None,
        *,
        token: str | None = None,
        may_differ: Collection[str] = (),
        commit_vote: bool = True,
        keep_gradients: bool = True,
        vote_in_backward: bool = True,
        straggler_timeout: Seconds | None = None,
        rehearse: bool = True,
        compare_states: bool = True,
    ) -> None:
        if (load_state_dict is None) != (state_dict is None):
            raise ConfigError("load_state_dict and state_dict belong together; give both or none.")
        end_with_a_sentence()  # should the others refuse this group, and the script not handle it
        spare_loader_workers()
        options = resolve(
            replica_id=replica_id, rank=rank, world_size=world_size, timeout=timeout, quorum_timeout=quorum_timeout,
            connect_timeout=connect_timeout, quorum_retries=quorum_retries, lighthouse_addr=lighthouse_addr, port=port,
            hostname=hostname, store_addr=store_addr, store_port=store_port, token=token,
            min_replica_size=min_replica_size, heartbeat_interval=heartbeat_interval, commit_vote=commit_vote,
            straggler_timeout=straggler_timeout,
        )  # fmt: skip
        self._use_async_quorum = use_async_quorum  # torchft's name: its DiLoCo looks at it
        self._pg = pg  # between the groups
        self._declared = FingerprintBuilder(options.group_world_size, may_differ)  # what must be alike in all groups
        where = "in backward" if vote_in_backward else "at the step's end"
        self._declared.add("vote between groups", where if options.commit_vote else "off")
        self._closed = False
        self._prepared = False  # whether the transport knows how much it will have to offer
        states = StateDicts(options.timeout)
        if load_state_dict is not None and state_dict is not None:
            states.register(DEFAULT_KEY, load_state_dict, state_dict)
        step = Step(min_replica_size=options.min_replica_size, max_retries=max_retries)
        self._context = assemble(
            options, step, pg, states, transport=checkpoint_transport, mode=world_size_mode,
            init_sync=init_sync, compares=compare_states and commit_vote, fingerprint=self._declared,
        )  # fmt: skip
        self._failures = self._context.failures
        self.steps = StepLoop(  # for who reduces gradients (`DistributedDataParallel`)
            self._context, pg, waits=not use_async_quorum, redo=keep_gradients, late=not vote_in_backward,
            rehearse=rehearse and self._context.connection.others_train,
        )  # fmt: skip
        self._usual = QuorumOptions(options.quorum_timeout, options.quorum_patience)  # of most steps
        self._at_exit = _leave_at_exit(self)
        self._context.events.emit("joined", step=0)

    def __repr__(self) -> str:
        return (
            f"Manager({self._context.connection.replica_id}/{self._context.options.group_rank}, {self._context.step})"
        )

    # --- a step -------------------------------------------------------------------------------------------------------

    def start_quorum(self, allow_heal: bool = True, shrink_only: bool = False, timeout: Seconds | None = None) -> None:
        """Begin a step: ask who takes part in it, and heal if this rank is behind.

        Waits for the answer if use_async_quorum is False, at the first quorum, and at step 0; otherwise it goes on
        beside the training, and what goes wrong is raised by the first call that needs the quorum. Where others train
        already it does not ask the first time (`rehearse`).

        Args:
            allow_heal: if False nobody heals in this quorum; a rank that is behind then can't commit.
            shrink_only: no newcomers.
            timeout: instead of quorum_timeout.

        Raises `DeadlineError`, `RefusedError`, `FencedError`, `UnreachableError`; `LeafError` (first call) if the state
        dict holds something that can't be sent; `ConfigError` in a function that is compiled.
        """
        if in_compiled_code():
            raise ConfigError(
                "a step begins (start_quorum, Optimizer.zero_grad) in a function that was given to torch.compile, which "
                "would compile what talks to the other groups, too; compile the model (model.compile()), and call the step as it is."
            )
        c = self._context
        if self.steps.standing is None and isinstance(c.transport, HTTPTransport):
            check_sendable(c.full_state())
        if not self._prepared and c.step.state.step > 0 and self._has_company():
            self._prepared = True  # now, as an optimizer's first step has made its state
            c.transport.prepare(c.full_state())
        options = self._usual
        if timeout is not None:
            options = QuorumOptions(seconds(timeout))
        if not allow_heal or shrink_only:
            options = replace(options, allow_heal=allow_heal, shrink_only=shrink_only)
        self.steps.start(options)

    def wait_quorum(self) -> None:
        """Wait until the quorum and the process group are there. Raises what `start_quorum` raises."""
        self.steps.wait_quorum()

    def allreduce(
        self, tensor: torch.Tensor, should_quantize: bool | str = False, reduce_op: Any = ReduceOp.AVG, *,
        lost: torch.Tensor | None = None, before: Callable[[int, int], None] | None = None,
    ) -> dist.Work:  # fmt: skip
        """Reduce `tensor` in place over the participating groups. Never fails: a bad reduction drops the step.

        A group that doesn't participate (it heals, or is a spare) changes nothing but receives the result. AVG divides
        by `num_participants` before the sum.

        Args:
            should_quantize: "int8" (True), "int4" or "fp8": values travel so, and are summed in float32; SUM and AVG of
                floating point. The same in all groups: see `declare_quantization`. Its ``wait()`` does half of the work.
            lost: flat, float32, of as many values: what quantising leaves out here is added to it, for error feedback. Good
                once the step is committed. See `torchft_x.comm.quantized.collectives.reduce_quantized`.
            before: of a quantised one: writes values of `tensor` just before they are read. See there. Not called if this group
                contributes nothing.

        Raises `ConfigError` (a ValueError) for AVG of integers, for sparse tensors and views with holes, for what can't be
        quantised, and if the other groups quantise otherwise; and what `wait_quorum` raises.
        """
        fmt = None if should_quantize is False else format_of(should_quantize)
        if fmt is not None:
            check_quantized(tensor, fmt, reduce_op)
            self._declared.quantizes(fmt)
        else:
            check_dense(tensor)
        if reduce_op == ReduceOp.AVG and not (tensor.is_floating_point() or tensor.is_complex()):
            raise ConfigError(f"AVG needs floating point; {tensor.dtype} can be summed (reduce_op=ReduceOp.SUM).")
        return self.steps.reduce(tensor, reduce_op, fmt, lost=lost, before=before)

    def should_commit(self, timeout: Seconds | None = None) -> bool:
        """End a step: True if all ranks of this group hold its good result; then (and only then) step the optimizer.

        Waits for the step's reductions and a heal beside it, and applies the healed state. Every rank must call it.

        Raises `StepError` after max_retries failures in a row, `DeadlineError` if another rank of the group does not
        vote, and what `start_quorum` raises. Don't go on after an error: the group may have committed without this rank.
        """
        return self.steps.commit(self._context.options.group_timeout if timeout is None else seconds(timeout))

    def report_error(self, e: Exception) -> None:
        """Say that this step can't be committed. Its other reductions return at once, and the other groups drop it too.

        With `DistributedDataParallel` a step is decided at the end of ``backward()``. The first time this comes after it
        the others may have committed: then this group copies their state in the next step. From then on the groups
        vote in `should_commit`. See `vote_in_backward`.
        """
        self.steps.object(e)

    @contextlib.contextmanager
    def planned_pause(self, reason: str, seconds: Seconds) -> Iterator[None]:
        """Announce that this group may be silent or late for up to `seconds`: an evaluation, a checkpoint, a compile.

        While it lasts the group isn't taken for hung, and groups that wait for its next quorum wait `seconds` longer
        than their quorum_timeout. Between two steps, on every rank::

            with manager.planned_pause("evaluation", seconds=600):
                evaluate(model)

        A group that dies meanwhile, or whose process is stopped, is lost as ever.
        """
        limit = seconds_of(seconds, "seconds of planned_pause")
        client = self._context.connection.client
        client.pause(limit, reason)
        status = self._context.status
        if status is not None:
            status.pause(limit)
        try:
            yield
        finally:
            client.pause(0.0, reason)
            if status is not None:
                status.pause(0.0)

    def errored(self) -> ExceptionWithTraceback | None:
        """The first error of this step."""
        with self._failures.lock:
            error = self._context.step.error
        return None if error is None else ExceptionWithTraceback(error)

    def wrap_future(self, fut: Future[Any], default: Any, timeout: Seconds | None = None) -> Future[Any]:
        """`fut`, but it completes with `default` if it fails or takes too long, which drops the step."""
        limit = self._context.options.timeout if timeout is None else seconds(timeout)
        with self._failures.lock:
            quorum_id = self._context.step.quorum_id or None
        report = (
            self.steps.rehearsal.report
            if self.steps.rehearsal.is_on
            else partial(self.steps.object, quorum_id=quorum_id)
        )
        return wrap_future(fut, default, limit, report)

    # --- who takes part -----------------------------------------------------------------------------------------------

    def num_participants(self) -> int:
        """Groups whose gradients count in this step. Waits for the quorum. 1 in a step that nobody else takes part in."""
        if self.steps.rehearsal.is_on:
            return 1
        self.wait_quorum()
        with self._failures.lock:
            return self._context.step.size

    def participating_rank(self) -> int | None:
        """This group's place among them, None if it heals, is a spare, or makes its first step for itself. Waits for the quorum."""
        if self.steps.rehearsal.is_on:
            return None
        self.wait_quorum()
        with self._failures.lock:
            return self._context.step.rank

    def is_participating(self) -> bool:
        return self.participating_rank() is not None

    def note_inner_step(self) -> None:
        """For who trains apart (`LocalSGD`, `DiLoCo`): an inner step has ended, or the first is about to begin. The supervisor
        measures the group's progress by it."""
        self.steps.rehearsal.skip()  # nobody waits for a group's inner steps
        if self._context.memory is not None:
            self._context.memory.apart = True
        if self._context.status is not None:
            self._context.status.trained()

    def note_exchange(self) -> None:
        """For who trains apart: what was exchanged is in place, and no inner step has followed. The only moment in which this
        rank's state is one that a group could begin with, so a copy of it that is due is made now."""
        copy_now(self._context)

    def declare(self, name: str, words: str, parts: Sequence[str] = (), digest: str = "") -> None:
        """Say what must be alike in all groups; a group that says something else under the name can't join them.

        Before the first `start_quorum`. The Manager declares "torchft_x", "PyTorch" (versions) and "group world size",
        `DistributedDataParallel` the "model" and the "bucket layout". Declare what else would make the groups drift
        apart or hang, above all the data (`describe_data`) and the sizes of your own `allreduce` calls::

            manager.declare("data set", *torchft_x.describe_data("train.bin"))
            manager.declare("hyperparameters", f"lr {lr}, batch {batch}")

        Args:
            name: what it is. A name given again gets a number: "model 2".
            words: its value, for people.
            parts: pieces of it, each beginning with its own name, so that the first that differs can be named.
            digest: of the value, if words and parts don't make it up.
        """
        self._declared.add(name, words, parts, digest)

    def check_device(self, kind: str) -> None:
        """Raises `ConfigError` if `allreduce` can't take tensors on devices of this kind ("cpu")."""
        takes = getattr(self._pg, "takes", None)
        if takes not in (None, kind):
            raise ConfigError(
                f"the gradients are on {kind}, and {type(self._pg).__name__} takes tensors on {takes} only; give the Manager "
                "a ProcessGroupGloo (a model that CPUOffloadPolicy keeps on the host needs it too)."
            )

    def declare_quantization(self, should_quantize: bool | str) -> None:
        """Say how this group's reductions are quantised ("int8", "int4", "fp8", True, or False for not at all), so that
        a group that does it otherwise is refused at its join. Before the first `start_quorum`: `allreduce` says it too,
        but first comes too late for the others then.

        Raises `ConfigError` if something else was said before.
        """
        self._declared.quantizes(format_of(should_quantize))

    # --- state --------------------------------------------------------------------------------------------------------

    def register_state_dict_fn(
        self, key: str, load_state_dict: Callable[[Any], None], state_dict: Callable[[], Any]
    ) -> None:
        """Add a part of the state that heals copy. The same keys in all groups."""
        self._context.state_dicts.register(key, load_state_dict, state_dict)

    def set_state_dict_fns(self, load_state_dict: Callable[[Any], None], state_dict: Callable[[], Any]) -> None:
        """The peer's deprecated form of `register_state_dict_fn`; a second call replaces the first."""
        self._context.state_dicts.register(_DEPRECATED_KEY, load_state_dict, state_dict, replace=True)

    def allow_state_dict_read(self) -> None:
        """Undo `disallow_state_dict_read`."""
        self._context.state_dicts.allow()

    def disallow_state_dict_read(self) -> None:
        """Keep snapshots off while the parameters change outside of a commit. Waits for one in progress."""
        self._context.state_dicts.forbid()

    def state_dict(self) -> dict[str, int]:
        """The Manager's own part of a checkpoint."""
        return self._context.counters()

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Take over a checkpoint's counters, ours or the peer's. Between steps."""
        state, batches = read_state(state_dict)
        with self._failures.lock:
            self._context.step.restore(state, batches)

    def bytes_sent(self) -> int:
        """Bytes of reductions that this rank has sent to other groups so far: the payload, without headers.

        Exact for quantised reductions; for others what a ring all-reduce sends. Attempts that failed count as well.
        """
        return self.steps.reductions.bytes_sent

    @property
    def context(self) -> RankContext:
        """What it is made of, for the classes of this library."""
        return self._context

    @property
    def name(self) -> str:
        """GROUP/RANK: of this rank, the same in all of its lives if `replica_id` is given."""
        return f"{group_of(self._context.connection.replica_id)}/{self._context.options.group_rank}"

    def current_step(self) -> int:
        """Number of committed steps: the index of the step in hand."""
        with self._failures.lock:
            return self._context.step.state.step

    def log(self, **numbers: float) -> None:
        """Write numbers of the script's own into the run's events, beside the steps committed so far. The run's report draws
        `loss`. Once in some steps and on one rank is enough."""
        self._context.events.emit("metrics", step=self.current_step(), **numbers)

    def batches_committed(self) -> int:
        """Sum of participants over the committed steps."""
        with self._failures.lock:
            return self._context.step.batches_committed

    def shutdown(self, wait: bool = True, *, finished: bool = True) -> None:
        """Leave at a step boundary: nobody loses a step. May be called twice.

        With `wait`, who still fetches this rank's state may finish (at most for the timeout). `finished`: the training
        is done, and until this process has ended no group that comes late begins it again; say False where it isn't
        (SIGTERM, a preemption).
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        c = self._context
        self.steps.close()
        if c.memory is not None:
            if not finished:
                copy_last(c)
            c.memory.close()
        c.transport.shutdown(wait=wait)
        c.connection.close(wait, early=not finished)
        c.peers.shutdown()
        c.events.emit("leave", step=self.current_step(), finished=finished)
        c.events.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _has_company(self) -> bool:
        quorum = self.steps.quorum
        return quorum is not None and len(quorum.members) > 1

    @property
    def _step(self) -> int:
        return self.current_step()


def _leave_at_exit(manager: Manager) -> Callable[[], None]:
    """A script that just ends leaves gracefully; one that dies in the middle of a step must not seem to."""
    ref = weakref.ref(manager)

    def leave() -> None:
        alive = ref()
        if alive is not None and alive._context.step.phase is Phase.IDLE:
            alive.shutdown(wait=False, finished=getattr(sys, "last_value", None) is None)

    atexit.register(leave)
    return leave
