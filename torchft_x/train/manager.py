"""The object a training script uses to take part in fault-tolerant training.

The Manager checks arguments and delegates each call; it holds no rules. `StepLoop` runs the steps and `QuorumRound`
runs one quorum. `core.commit.step` decides about this rank's step, `core.heal` who copies state from whom.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.futures import Future

from torchft_x.comm.base import check_dense
from torchft_x.comm.quantized.collectives import check_quantized
from torchft_x.comm.quantized.format import format_of
from torchft_x.core.commit.step import Step, StepPhase
from torchft_x.core.fingerprint import ORDER
from torchft_x.core.heal import WorldSizeMode
from torchft_x.core.types import group_of
from torchft_x.durations import Seconds, seconds
from torchft_x.durations import seconds as seconds_of
from torchft_x.errors import ConfigError
from torchft_x.train.context.context import RankContext
from torchft_x.train.context.fingerprint import FingerprintBuilder
from torchft_x.train.context.futures import ExceptionWithTraceback, wrap_future
from torchft_x.train.context.state_dicts import DEFAULT_KEY, StateDicts
from torchft_x.train.heal.own_copy import copy_last, copy_now
from torchft_x.train.heal.state_exchange import read_state
from torchft_x.train.loader_workers import spare_loader_workers
from torchft_x.train.setup.excepthook import end_with_a_sentence
from torchft_x.train.setup.options import resolve
from torchft_x.train.step.quorum_round import QuorumOptions
from torchft_x.train.step.step_loop import StepLoop
from torchft_x.transfer.format.flatten import check_sendable
from torchft_x.transfer.http.transport import HTTPTransport
from torchft_x.transfer.transport import CheckpointTransport

_DEPRECATED_KEY = "set_state_dict_fns"  # torchft's key for the functions given to the deprecated method


class Manager:
    """Takes part in fault-tolerant training over replica groups for one rank.

    Every rank of every group makes one. A step is ``start_quorum()`` (`Optimizer.zero_grad` calls it), reductions
    (`DistributedDataParallel`, or `allreduce`), ``should_commit()`` (`Optimizer.step`). Arguments and methods are those
    of torchft's Manager; times may be seconds or timedelta. Unlike in torchft an argument overrides its environment
    variable, so times are None by default: 60 s, or the value of TORCHFT_TIMEOUT_SEC, TORCHFT_QUORUM_TIMEOUT_SEC or
    TORCHFT_CONNECT_TIMEOUT_SEC.

    Args:
        pg: reconfigurable process group between the replica groups (e.g. `ProcessGroupGloo`). The Manager reconfigures
            it whenever the members change.
        load_state_dict, state_dict: load and return everything that must be equal in all groups (model, optimizer,
            scheduler, ...). Add more pairs with `register_state_dict_fn`.
        min_replica_size: fewest participating groups for a commit; TORCHFT_X_MIN_REPLICAS, if larger (a job's
            --min_replicas).
        use_async_quorum: ask for a quorum beside the forward pass; a group that heals contributes from the next quorum
            on. If False, `start_quorum` waits and heals, and the healed group contributes at once. Equal in all groups.
        timeout: limit for reductions, healing and the vote. If it is not set, ranks of one group wait for each other
            for ten minutes.
        quorum_timeout: limit for `start_quorum`. If it is not set, it gives up when the lighthouse has not told for a
            minute what it waits for, or was away for three minutes, and after an hour in all. A limit that is shorter
            than the lighthouse's heartbeat timeout is refused.
        connect_timeout: limit for finding the group's store, its server and the lighthouse.
        rank, world_size: rank of this process in its group, and the group's size (RANK, WORLD_SIZE; 0 and 1 if unset).
        world_size_mode: DYNAMIC counts every healthy group. FIXED_WITH_SPARES counts at most `min_replica_size`.
        store_addr, store_port: address of the group's store (MASTER_ADDR, MASTER_PORT).
        lighthouse_addr: ``http://host:port`` (TORCHFT_LIGHTHOUSE); needed on rank 0.
        replica_id: the group's name, stable over restarts (REPLICA_GROUP_ID). A nonce is added.
        port: port of the group server (TORCHFT_MANAGER_PORT; any free one).
        hostname: name or address by which other hosts reach this one (TORCHFT_X_ADVERTISE_HOST; see docs/schedulers.md).
        heartbeat_interval: without effect, because the session to the lighthouse needs no tuning.
        checkpoint_transport: how state travels in a heal; `HTTPTransport` if None. Your own transport may have
            torchft's interface (`torchft_x.transfer.torchft_transports`).
        init_sync: at step 0 all groups take one group's weights.
        max_retries: most failed commits in a row; after one more `should_commit` raises `StepError`. None: no limit.
        quorum_retries: without effect; the group server reconnects by itself.
        token: the run's token (TORCHFT_X_TOKEN, TORCHFT_X_TOKEN_FILE).
        may_differ: names of traits (see `declare`) in which this group may differ from the others, e.g.
            ``("group world size",)`` if it has another number of ranks on purpose.
        commit_vote: the groups vote with each other before each commit, so that a committed step is final and results
            that differ are detected; costs one tiny all-reduce a step. Equal in all groups.
        keep_gradients: a step whose reduction failed is reduced again among the remaining groups, with the gradients
            that were computed already. `DistributedDataParallel` keeps them until the next forward, which takes one
            more copy. If False, such a step is dropped.
        vote_in_backward: `DistributedDataParallel` decides a step at the end of ``backward()``, so that a failed
            reduction is repeated before the script clips or unscales. If False, `should_commit` decides. Choose False
            for scripts that throw a step away after ``backward()`` (`report_error`, or no `should_commit`); the Manager
            also switches to it the first time a script does so. Equal in all groups.
        straggler_timeout: how much later than this group another one may come to a reduction or a vote before the
            others go on without it (it comes back, and copies their state). If it is not set
            (TORCHFT_X_STRAGGLER_TIMEOUT), it is the longer of 2 s and five times what this group itself needed since
            the last step. Never longer than `timeout`.
        rehearse: if others train already, this group makes its first step before it asks to join, and drops it
            (`should_commit` is False), so that compiling, loading or hanging in it delays nobody. Equal on all ranks of
            a group.
        compare_states: every 8 commits the groups compare a sixteenth of the parameters and optimizer states that
            `OptimizerWrapper` knows, in turn. A group whose bits differ from those of most groups copies their state.

    Raises:
        ConfigError: missing or senseless arguments.
        AddressError, UnreachableError, TokenError: errors about the lighthouse, within seconds if the address can't be
            right.
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
        del heartbeat_interval, quorum_retries
        end_with_a_sentence()  # for a refusal by the others that the script does not handle
        spare_loader_workers()
        options = resolve(
            replica_id=replica_id, rank=rank, world_size=world_size, timeout=timeout, quorum_timeout=quorum_timeout,
            connect_timeout=connect_timeout, lighthouse_addr=lighthouse_addr, port=port, hostname=hostname,
            store_addr=store_addr, store_port=store_port, token=token, min_replica_size=min_replica_size,
            commit_vote=commit_vote, straggler_timeout=straggler_timeout,
        )  # fmt: skip
        self._use_async_quorum = use_async_quorum  # torchft's name, which its DiLoCo reads
        self._pg = pg  # process group between the replica groups
        self._declared = FingerprintBuilder(options.group_world_size, may_differ)  # must be alike in all groups
        where = "in backward" if vote_in_backward else "at the step's end"
        self._declared.add("vote between groups", where if options.commit_vote else "off")
        self._closed = False
        self._prepared = False  # whether the transport was told the size of the full state
        states = StateDicts(options.timeout)
        if load_state_dict is not None and state_dict is not None:
            states.register(DEFAULT_KEY, load_state_dict, state_dict)
        step = Step(min_replica_size=options.min_replica_size, max_retries=max_retries)
        self._context = RankContext(
            options, step, pg, states, transport=checkpoint_transport, mode=world_size_mode,
            init_sync=init_sync, compares=compare_states and commit_vote, fingerprint=self._declared,
        )  # fmt: skip
        self._failures = self._context.failures
        self.steps = StepLoop(  # `DistributedDataParallel` reduces through it
            self._context, pg, waits=not use_async_quorum, redo=keep_gradients, late=not vote_in_backward,
            rehearse=rehearse and self._context.connection.others_train,
        )  # fmt: skip
        self._at_exit = _leave_at_exit(self)
        self._context.events.emit("joined", step=0)

    def __repr__(self) -> str:
        return (
            f"Manager({self._context.connection.replica_id}/{self._context.options.group_rank}, {self._context.step})"
        )

    # --- a step -------------------------------------------------------------------------------------------------------

    def start_quorum(self, allow_heal: bool = True, shrink_only: bool = False, timeout: Seconds | None = None) -> None:
        """Begin a step: ask who takes part in it, and heal if this rank is behind.

        The call waits for the answer if use_async_quorum is False, at the first quorum, and at step 0. Otherwise the
        quorum is formed beside the training, and the first call that needs it raises its errors. If others train
        already, the first call does not ask (`rehearse`).

        Args:
            allow_heal: if False nobody heals in this quorum; a rank that is behind then can't commit.
            shrink_only: admit no newcomers.
            timeout: limit in place of quorum_timeout.

        Raises `DeadlineError`, `RefusedError`, `FencedError`, `UnreachableError`; `LeafError` (first call) if the state
        dict holds something that can't be sent; `ConfigError` in a function that is compiled.
        """
        if _in_compiled_code():
            raise ConfigError(
                "a step begins (start_quorum, Optimizer.zero_grad) in a function that was given to torch.compile, which "
                "would compile what talks to the other groups, too; compile the model (model.compile()), and call the step as it is."
            )
        c = self._context
        if self.steps.role is None and isinstance(c.transport, HTTPTransport):
            check_sendable(c.full_state())
        if self.steps.round is None and not self._declared.has(ORDER):  # groups that deal their data must refuse it
            self._declared.add(ORDER, "chosen by the script", ["no ElasticLoader"])
        role = self.steps.role
        if not self._prepared and c.step.state.step > 0 and role is not None and len(role.quorum.members) > 1:
            self._prepared = True  # after step 0, when the optimizer has its state; else the first heal waits for pages
            c.transport.prepare(c.full_state())
        limits = (c.options.quorum_timeout, c.options.quorum_patience) if timeout is None else (seconds(timeout), 0.0)
        self.steps.start(QuorumOptions(*limits, allow_heal, shrink_only))

    def wait_quorum(self) -> None:
        """Wait until the quorum and the process group are ready. Raises the errors of `start_quorum`."""
        self.steps.wait_quorum()

    def allreduce(
        self, tensor: torch.Tensor, should_quantize: bool | str = False, reduce_op: Any = ReduceOp.AVG, *,
        lost: torch.Tensor | None = None,
    ) -> dist.Work:  # fmt: skip
        """Reduce `tensor` in place over the participating groups. A failed reduction drops the step and is not raised.

        A group that doesn't participate (it heals, or is a spare) changes nothing but receives the result.

        Args:
            tensor: dense tensor without holes, of the same shape and dtype in all groups.
            should_quantize: format in which values are sent: "int8" (True), "int4" or "fp8". They are summed in
                float32. Takes SUM and AVG of floating point. Equal in all groups (`declare_quantization`). The
                handle's ``wait()`` does half of the work.
            reduce_op: a ``ReduceOp``. AVG divides by `num_participants` before the sum.
            lost: flat float32 tensor of as many values as `tensor`. This group's quantisation error is added to it, for
                error feedback; valid once the step is committed (`comm.quantized.collectives.reduce_quantized`).

        Raises `ConfigError` (a ValueError) for AVG of integers, for sparse tensors and views with holes, for tensors
        that can't be quantised, and if the other groups quantise otherwise; and the errors of `wait_quorum`.
        """
        fmt = None if should_quantize is False else format_of(should_quantize)
        if fmt is not None:
            check_quantized(tensor, fmt, reduce_op)
            self._declared.quantizes(fmt)
        else:
            check_dense(tensor)
        if reduce_op == ReduceOp.AVG and not (tensor.is_floating_point() or tensor.is_complex()):
            raise ConfigError(f"AVG needs floating point; {tensor.dtype} can be summed (reduce_op=ReduceOp.SUM).")
        return self.steps.reduce(tensor, reduce_op, fmt, lost=lost)

    def should_commit(self, timeout: Seconds | None = None) -> bool:
        """End a step. Return whether it is committed; step the optimizer if, and only if, it is.

        The call waits for the step's reductions and a concurrent heal, and applies the healed state. Every rank must
        call it. A step is committed only if all ranks of this group hold its good result.

        Raises `StepError` after max_retries failures in a row, `DeadlineError` if another rank of the group does not
        vote, and the errors of `start_quorum`. Don't go on after an error: the group may have committed without this
        rank.
        """
        return self.steps.commit(self._context.options.group_timeout if timeout is None else seconds(timeout))

    def report_error(self, e: Exception) -> None:
        """Report that this step can't be committed. Its reductions return at once, and the other groups drop it too.

        With `DistributedDataParallel` a step is decided at the end of ``backward()``. If the first report comes after
        that, the others may have committed, and this group copies their state in the next step. From then on the groups
        vote in `should_commit` (`vote_in_backward`).
        """
        self.steps.reject_step(e)

    @contextlib.contextmanager
    def planned_pause(self, reason: str, seconds: Seconds) -> Iterator[None]:
        """Announce that this group may be silent or late for up to `seconds`: an evaluation, a checkpoint, a compile.

        During the pause the group isn't taken for hung, and groups that wait for its next quorum wait `seconds` longer
        than their quorum_timeout. Use it between two steps, on every rank::

            with manager.planned_pause("evaluation", seconds=600):
                evaluate(model)

        A group that dies during the pause, or whose process is stopped, is lost as at any other time.
        """
        limit = seconds_of(seconds, "seconds of planned_pause")
        client, status = self._context.connection.client, self._context.status
        client.pause(limit, reason)
        status.pause(limit)
        try:
            yield
        finally:
            client.pause(0.0, reason)
            status.pause(0.0)

    def errored(self) -> ExceptionWithTraceback | None:
        """Return the first error of this step; None if there is none."""
        with self._failures.lock:
            error = self._context.step.error
        return None if error is None else ExceptionWithTraceback(error)

    def wrap_future(self, fut: Future[Any], default: Any, timeout: Seconds | None = None) -> Future[Any]:
        """Return a future with the result of `fut`, or with `default` if `fut` fails or takes too long.

        A failure drops the step.
        """
        limit = self._context.options.timeout if timeout is None else seconds(timeout)
        with self._failures.lock:
            quorum_id = -1 if self.steps.rehearsal.is_on else self._context.step.quorum_id or None
        return wrap_future(fut, default, limit, partial(self.steps.reject_step, quorum_id=quorum_id))

    # --- who takes part -----------------------------------------------------------------------------------------------

    def num_participants(self) -> int:
        """Return the number of groups whose gradients count in this step, after waiting for the quorum.

        It is 1 in a rehearsal.
        """
        if self.steps.rehearsal.is_on:
            return 1
        self.wait_quorum()
        with self._failures.lock:
            return self._context.step.size

    def participating_rank(self) -> int | None:
        """Return this group's rank among the participants, after waiting for the quorum.

        It is None if the group heals, is a spare, or makes a rehearsal.
        """
        if self.steps.rehearsal.is_on:
            return None
        self.wait_quorum()
        with self._failures.lock:
            return self._context.step.rank

    def is_participating(self) -> bool:
        return self.participating_rank() is not None

    def record_inner_step(self) -> None:
        """Record that an inner step of LocalSGD or DiLoCo has ended, or that the first one is about to begin.

        The supervisor measures the group's progress by these calls.
        """
        self.steps.rehearsal.skip()  # no other group waits for inner steps
        self._context.status.trained()

    def copy_after_exchange(self) -> None:
        """Copy this rank's state to memory if a copy is due, after an exchange and before the next inner step.

        Only at this moment could a group start from this rank's state.
        """
        if self._context.memory is not None:
            copy_now(self._context, self._context.memory)

    def declare(self, name: str, words: str, parts: Sequence[str] = (), digest: str = "") -> None:
        """Declare a trait that must be alike in all groups. A group with another value under `name` can't join them.

        Call it before the first `start_quorum`. The Manager declares "torchft_x", "PyTorch" (versions) and "group world
        size"; `DistributedDataParallel` declares the "model" and the "bucket layout". Declare everything else that
        would make the groups drift apart or hang, above all the data (`describe_data`) and the sizes of your own
        `allreduce` calls::

            manager.declare("data set", *torchft_x.describe_data("train.bin"))
            manager.declare("hyperparameters", f"lr {lr}, batch {batch}")

        Args:
            name: name of the trait. A name given again gets a number: "model 2".
            words: its value, for people.
            parts: pieces of the value, each beginning with its own name, so that the first that differs can be named.
            digest: digest of the value, if words and parts don't determine it.
        """
        self._declared.add(name, words, parts, digest)

    def check_device(self, kind: str) -> None:
        """Raise `ConfigError` if `allreduce` can't take tensors on devices of this kind ("cpu")."""
        takes = getattr(self._pg, "takes", None)
        if takes not in (None, kind):
            raise ConfigError(
                f"the gradients are on {kind}, and {type(self._pg).__name__} takes tensors on {takes} only; give the Manager "
                "a ProcessGroupGloo (a model that CPUOffloadPolicy keeps on the host needs it too)."
            )

    def declare_quantization(self, should_quantize: bool | str) -> None:
        """Declare how this group's reductions are quantised: "int8", "int4", "fp8", True, or False for not at all.

        A group that quantises otherwise is then refused at its join. Call it before the first `start_quorum`:
        `allreduce` declares the format too, but only after the join. Raises `ConfigError` if another format was
        declared before.
        """
        self._declared.quantizes(format_of(should_quantize))

    # --- state --------------------------------------------------------------------------------------------------------

    def register_state_dict_fn(
        self, key: str, load_state_dict: Callable[[Any], None], state_dict: Callable[[], Any]
    ) -> None:
        """Register a part of the state that heals copy. All groups must register the same keys."""
        self._context.state_dicts.register(key, load_state_dict, state_dict)

    def set_state_dict_fns(self, load_state_dict: Callable[[Any], None], state_dict: Callable[[], Any]) -> None:
        """Register a part of the state through torchft's deprecated method. A second call replaces the first."""
        self._context.state_dicts.register(_DEPRECATED_KEY, load_state_dict, state_dict, replace=True)

    def allow_state_dict_read(self) -> None:
        """Undo `disallow_state_dict_read`."""
        self._context.state_dicts.allow()

    def disallow_state_dict_read(self) -> None:
        """Forbid snapshots while the parameters change outside of a commit. Waits for a snapshot in progress."""
        self._context.state_dicts.forbid()

    def state_dict(self) -> dict[str, Any]:
        """Return the Manager's own part of a checkpoint: its counters, and the position in the data if it deals them."""
        return self._context.counters()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the Manager's part of a checkpoint, ours or torchft's. Call it between steps.

        Raises `ConfigError` if the checkpoint's position in the data is one in another data set or order.
        """
        state, batches, data = read_state(state_dict)
        with self._failures.lock:
            self._context.step.restore(state, batches, data)

    def bytes_sent(self) -> int:
        """Return the bytes of reductions that this rank has sent to other groups so far: the payload, without headers.

        The number is exact for quantised reductions; for others it is what a ring all-reduce sends. Failed attempts
        count.
        """
        return self.steps.reductions.bytes_sent

    @property
    def context(self) -> RankContext:
        """Objects that the Manager is made of, for the classes of this library."""
        return self._context

    @property
    def name(self) -> str:
        """GROUP/RANK: this rank's name. It is the same in all attempts if `replica_id` is given."""
        return f"{group_of(self._context.connection.replica_id)}/{self._context.options.group_rank}"

    def current_step(self) -> int:
        """Return the number of committed steps, which is the index of the current step."""
        with self._failures.lock:
            return self._context.step.state.step

    def log(self, **numbers: float) -> None:
        """Write the script's own numbers into the run's events, with the number of steps committed so far.

        The run's report draws `loss`. Calling it every few steps on one rank is enough.
        """
        self._context.events.emit("metrics", step=self.current_step(), **numbers)

    def batches_committed(self) -> int:
        """Return the sum of participants over the committed steps."""
        with self._failures.lock:
            return self._context.step.batches_committed

    def shutdown(self, wait: bool = True, *, finished: bool = True) -> None:
        """Leave at a step boundary, so that nobody loses a step. Idempotent.

        Args:
            wait: let members that still fetch this rank's state finish, at most for the timeout.
            finished: the training is done, and no late group begins it again until this process has ended. Pass False
                if it is not done (SIGTERM, a preemption).
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        c = self._context
        self.steps.close()
        if c.memory is not None:
            if not finished and not self.steps.data.trains_apart:
                copy_last(c, c.memory)
            c.memory.close()
        c.transport.shutdown(wait=wait)
        c.connection.close(wait, early=not finished)
        c.peers.shutdown()
        c.events.emit("leave", step=self.current_step(), finished=finished)
        c.events.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _step(self) -> int:
        return self.current_step()


def _in_compiled_code() -> bool:
    """Return whether the caller runs, at any depth, inside a function that was given to ``torch.compile``.

    This does not load the compiler.
    """
    callback = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: None)()  # private: may go
    return callback is not None and callback is not False


def _leave_at_exit(manager: Manager) -> Callable[[], None]:
    """Make a script that ends without `shutdown` leave gracefully, but not one that dies in the middle of a step."""
    ref = weakref.ref(manager)

    def leave() -> None:
        alive = ref()
        if alive is not None and alive._context.step.phase is StepPhase.IDLE:
            alive.shutdown(wait=False, finished=getattr(sys, "last_value", None) is None)

    atexit.register(leave)
    return leave
