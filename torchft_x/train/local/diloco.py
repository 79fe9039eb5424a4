"""DiLoCo and Streaming DiLoCo: groups train by themselves, an outer optimizer steps by their pseudo-gradients.

`core.training.sync_schedule` decides when to exchange, `train.local.fragments` what is sent and how it is applied.
Papers: arXiv 2311.08105 and 2501.18512.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed import ReduceOp
from torch.optim import Optimizer

from torchft_x import env
from torchft_x.comm.quantized.collectives import check_quantized
from torchft_x.comm.quantized.format import format_of
from torchft_x.core.training.sync_schedule import Settings
from torchft_x.durations import Seconds
from torchft_x.errors import ConfigError
from torchft_x.train.ddp.fingerprint import declare_fragments
from torchft_x.train.ddp.trainable import TrainableParameters
from torchft_x.train.local.fragments import Fragment
from torchft_x.train.local.inner_loop import InnerLoop, bucket_bytes
from torchft_x.train.local.islands import Island, Leading

if TYPE_CHECKING:
    from typing_extensions import Self

    from torchft_x.train.manager import Manager


class DiLoCo:
    """Exchange of pseudo-gradients every `sync_every` inner steps, one fragment of the model after the other.

    ::

        inner = torch.optim.AdamW(model.parameters())
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        with DiLoCo(manager, [model], inner, outer, sync_every=100):
            for batch in data:
                inner.zero_grad()
                loss(model, batch).backward()
                inner.step()  # every 100th comes back with the new global weights

    Entering asks for the first quorum, so that a new group has the others' weights before its first step. The progress
    of a group is lost only with the group. If a member dies while pseudo-gradients are reduced, the remaining members
    reduce the same ones again. If an exchange fails for another reason, the local weights stay, and the exchange is
    tried again after ``fragment_sync_delay + 1`` more inner steps. A group that heals begins with the global weights
    and has nothing to send in that exchange.

    The outer optimizers' state and the global weights heal without your help. Put the inner optimizer's state (and
    buffers) into the Manager's state dict; the weights need not be in it.

    Args:
        manager: this rank's Manager, with ``use_async_quorum=False``.
        model_fragments: modules, whole on this rank or sharded within the group (FSDP2). One is exchanged in each
            period of ``sync_every / len(model_fragments)`` inner steps.
        inner_optimizer: the plain optimizer, not `torchft_x.Optimizer`.
        outer_optimizer: one for all fragments, or a list of one for each.
        sync_every: number of inner steps between two exchanges of the same fragment.
        backup_device: device that keeps the global weights; None: the CPU.
        pin_memory: keep them in pinned memory, if they are on the CPU and there is an accelerator.
        use_bucketization: send buckets instead of single tensors. If None, TORCHFT_USE_BUCKETIZATION, else True.
        bucket_cap_mb: size of a bucket in MiB (25); tensors may be larger. Equal in all groups.
        should_quantize: format in which pseudo-gradients are sent: "int8" (True), "int4" or "fp8"
            (docs/process_groups.md). `ConfigError` if the chip has no fp8.
        fragment_sync_delay: number of inner steps that a reduction may take in the background. `fragment_update_alpha`
            says how much of their progress in the fragment is kept.
        fragment_update_alpha: share of the local weights in the weights after an exchange, 0 to 1.
        weight: called before each exchange; returns this group's weight in the average, e.g. the tokens it has trained
            on. If None, all groups have the same weight.
        quorum_timeout: seconds that an exchange waits for the other groups to come to theirs; an hour if None.
        error_feedback: add the quantisation error of a pseudo-gradient to the fragment's next one, so that errors don't
            add up (`train.local.error_feedback`). Takes one float32 copy of the fragments on `backup_device`. Without
            should_quantize it has no effect.
        copy_pseudogradients_to_cpu: send from the CPU, for process groups that can't send from the accelerator.
        island: exchange for all ranks of this group, with ``[island.whole]`` as the only fragment (`Island`).

    Raises `ConfigError` (a ValueError) for settings that can't work. ``inner_optimizer.step()`` raises the errors of
    `Manager.start_quorum` and `Manager.should_commit`.
    """

    _words = "DiLoCo"  # groups that declare other words can't join
    _needs_synchronous_quorums = True  # as torchft's
    _averages_frozen = False  # whether parameters that need no gradient are exchanged, too

    def __init__(
        self,
        manager: Manager,
        model_fragments: Sequence[nn.Module],
        inner_optimizer: Optimizer,
        outer_optimizer: Optimizer | Sequence[Optimizer],
        sync_every: int,
        backup_device: torch.device | None = None,
        pin_memory: bool = True,
        use_bucketization: bool | None = None,
        bucket_cap_mb: float | None = None,
        should_quantize: bool | str = False,
        fragment_sync_delay: int = 0,
        fragment_update_alpha: float = 0.0,
        *,
        error_feedback: bool = True,
        weight: Callable[[], float] | None = None,
        quorum_timeout: Seconds | None = None,
        copy_pseudogradients_to_cpu: bool = False,
        island: Island | None = None,
    ) -> None:
        modules = list(model_fragments)
        settings = Settings(sync_every=sync_every, fragments=len(modules), delay=fragment_sync_delay)
        if self._needs_synchronous_quorums and manager._use_async_quorum:
            raise ConfigError("DiLoCo needs synchronous quorums; give Manager(use_async_quorum=False).")
        if island is not None and (len(modules) != 1 or modules[0] is not island.whole):
            raise ConfigError(
                "with an island there is one fragment, [island.whole], and only the rank that leads has a DiLoCo."
            )
        if not 0.0 <= fragment_update_alpha <= 1.0:
            raise ConfigError(f"fragment_update_alpha is {fragment_update_alpha}; it must lie between 0 and 1.")
        shared = isinstance(outer_optimizer, Optimizer)
        outers = [outer_optimizer] * len(modules) if shared else list(outer_optimizer)
        if len(outers) != len(modules):
            raise ConfigError(
                f"there are {len(outers)} outer optimizers for {len(modules)} fragments; give one for all, or one for each."
            )
        if use_bucketization is None:
            use_bucketization = env.read(env.USE_BUCKETIZATION, "True") == "True"
        cap = bucket_bytes(use_bucketization, bucket_cap_mb)
        fmt = format_of(should_quantize)
        quantizes = fmt is not None
        if quantizes:
            manager.declare_quantization(should_quantize)
        make = Fragment if island is None else partial(Leading, island)
        self._fragments = [
            make(
                module,
                outer,
                carries_outer=not shared or i == 0,
                device=backup_device,
                pin_memory=pin_memory,
                alpha=fragment_update_alpha,
                stage=copy_pseudogradients_to_cpu,
                feedback=quantizes and error_feedback,
                frozen=self._averages_frozen,
            )
            for i, (module, outer) in enumerate(zip(modules, outers, strict=True))
        ]
        if fmt is not None:  # raise now what the first exchange would raise
            for tensor in (t for fragment in self._fragments for t in fragment.tensors()):
                check_quantized(tensor, fmt, ReduceOp.SUM)
        what = f"{self._words}, {settings}, alpha {fragment_update_alpha:g}, "
        declare_fragments(manager, modules, what + (f"buckets of {cap} bytes" if cap else "a bucket per tensor"))
        for i, fragment in enumerate(self._fragments):
            manager.register_state_dict_fn(
                f"StreamingDiLoCoFragment_{i}", fragment.load_state_dict, fragment.state_dict
            )
            outer = outers[i] if not shared or i == 0 else None
            manager.context.committed.compare(fragment.module, fragment.original_parameters, outer)
        self._island = island
        self._loop = InnerLoop(
            manager, inner_optimizer, settings, self._fragments, cap=cap, quantize=should_quantize,
            weight=weight, quorum_timeout=quorum_timeout, followers=island,
            trainable=[TrainableParameters(m, frozen=self._averages_frozen) for m in modules],
        )  # fmt: skip
        self._entered = False
        self._resumed = False  # whether a checkpoint was loaded

    def __enter__(self) -> Self:
        if not self._entered and self._island is not None:
            self._island.spread() if self._resumed else self._island.gather()
        self._entered = True
        self._begin()
        return self

    def _begin(self) -> None:
        self._loop.enter()

    def __exit__(self, *error: object) -> None:
        self._loop.exit()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._loop.schedule})"

    @property
    def exchanges(self) -> int:
        """Number of committed exchanges of all fragments together. It is equal in all groups."""
        return self._loop.schedule.exchanges

    @property
    def progress(self) -> int:
        """Number of inner steps behind the common weights, plus those of this period.

        It is equal in all groups and survives a restart, so use it for the learning rate and the data's position.
        """
        return self._loop.schedule.progress

    @property
    def global_parameters(self) -> list[dict[str, torch.Tensor]]:
        """Global weights by fragment and name: this rank's shards. They are the live tensors; don't change them."""
        return [dict(f.original_parameters) for f in self._fragments]

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, between two inner steps.

        It leaves out the inner steps since the last exchange, and error feedback. Sharded values are DTensors.
        """
        fragments = [f.saved() for f in self._fragments]
        return {"algorithm": self._words, "exchanges": self.exchanges, "fragments": fragments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a checkpoint before training begins. The model takes the checkpoint's global weights.

        Raises `ConfigError` if it is too late, or the model was cut otherwise.
        """
        if self._entered:
            raise ConfigError("load_state_dict must be called before training begins (before `with`).")
        if "fragments" not in state:
            raise ConfigError(
                "LocalSGD of an earlier torchft_x wrote this checkpoint; load its weights into the model."
            )
        algorithm = state.get("algorithm", DiLoCo._words)
        if algorithm != self._words:
            raise ConfigError(f"{algorithm} wrote this checkpoint, not {self._words}; load its weights into the model.")
        if len(state["fragments"]) != len(self._fragments):
            raise ConfigError(
                f"the checkpoint has {len(state['fragments'])} fragments and this run {len(self._fragments)}; cut the model "
                "as it was."
            )
        for fragment, saved in zip(self._fragments, state["fragments"], strict=True):
            fragment.load_saved(saved)
        self._loop.schedule.healed(int(state["exchanges"]))
        self._resumed = True
