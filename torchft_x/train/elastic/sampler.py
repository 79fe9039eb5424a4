"""Deals the samples of each step out to the replica groups that take part in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from torchft_x.core.data.options import DataOptions, Policy, Tail
from torchft_x.core.data.permutation import permute
from torchft_x.core.data.state import DataState, Position, samples
from torchft_x.core.fingerprint import ORDER
from torchft_x.errors import ConfigError

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample: `index` in the data set, at `position` of the order of `epoch`."""

    epoch: int
    position: int
    index: int


@dataclass(frozen=True)
class Micro:
    """A micro batch of a step: this rank's part of one slot."""

    samples: list[Sample]
    counts: bool = True
    """Whether its gradient is in the result of the step. If not, it must be computed like any other."""
    batch: Any = None
    """The collated samples; None if only a sampler is used."""

    @property
    def indices(self) -> list[int]:
        """Indices of the samples in the data set."""
        return [s.index for s in self.samples]

    @property
    def x(self) -> Any:
        """First part of a batch that is a pair."""
        return self.batch[0]

    @property
    def y(self) -> Any:
        """Second part of a batch that is a pair."""
        return self.batch[1]


class ElasticSampler:
    """Deals each step's samples out to the groups, so that each is committed exactly once per epoch.

    ::

        sampler = ElasticSampler(manager, len(dataset), global_batch=512, micro_batch=8)
        while sampler.epoch < epochs:
            optimizer.zero_grad()
            for micro in sampler.step():
                x, y = collate([dataset[i] for i in micro.indices])
                loss_fn(ddp(x), y).backward()
            optimizer.step()

    A step has global_batch / micro_batch slots, for any number of groups. A group computes its share of them one after the
    other. The gradient that the optimizer gets is the mean over the slots: divide nothing.
    `DistributedDataParallel` and `HybridShardedDataParallel` average so; `Manager.allreduce` and process groups made of it
    divide by groups. All backward passes of a step but the last only accumulate, and a micro batch has one backward.
    Compute every micro batch of the step. A group that contributes nothing (it heals, is a spare, or there are fewer slots
    than groups) gets one micro batch whose samples don't count.

    Args:
        manager: this rank's Manager. One sampler or loader for each Manager, made before the first step.
        length: number of samples.
        micro_batch: samples of a slot. All groups together must compute at least one slot per step.
        global_batch: samples of a step, a multiple of `micro_batch`. Not with the policy "shrink".
        policy: what a step commits if a group is lost inside it. "constant": the slots of the others; the lost ones come
            first in the next step. "strict": the step is computed again with all slots. "shrink": each group has one slot, so
            the batch follows the number of groups.
        seed: seed of the order, which is another one in each epoch.
        shuffle: False: the samples come in the order of the data set.
        tail: what becomes of the samples that do not fill the last step of an epoch. "wrap": the next epoch fills it.
            "short": it has fewer slots, and one more step has a shorter slot. "drop": they are left out.
        digest: digest of the data set. Groups whose digest or sizes differ are refused (`describe_data`).
        rank, ranks: the part of each slot for this rank of the group: one of `ranks` equal parts. Give them if ranks of the
            group see different data (HSDP: group rank and group size); by default all ranks of a group see the same.
        reproducible: sum the slots in a fixed order. The parameters then have the same bits for any number of groups and any
            losses, given equal hardware, threads and deterministic kernels. Takes policy "strict". Torch's random
            generators are seeded by (seed, step, slot, rank) before each micro batch, so that dropout is alike, too.
        check_every: steps, at least 2, between two steps in which another group also computes one slot of a group, so that a
            group whose hardware computes wrong gradients is found and ends (docs/data.md); 0: none. Takes `reproducible`.
        weight: this group's weight in the sharing of slots, such as 2 for hardware that is twice as fast.

    Raises:
        ConfigError: sizes that don't fit, or a second sampler.
    """

    def __init__(
        self,
        manager: Manager,
        length: int,
        *,
        micro_batch: int,
        global_batch: int | None = None,
        policy: str = "constant",
        seed: int = 0,
        shuffle: bool = True,
        tail: str = "wrap",
        digest: str = "",
        rank: int = 0,
        ranks: int = 1,
        weight: int = 1,
        reproducible: bool = False,
        check_every: int = 0,
    ) -> None:
        options = _options(length, micro_batch, global_batch, policy, tail, ranks, weight)
        if reproducible:
            if options.policy is not Policy.STRICT or options.tail is Tail.SHORT:
                raise ConfigError("reproducible=True needs the policy 'strict' and the tail 'wrap' or 'drop'.")
            options = replace(options, reproducible=True, check_every=check_every)
        if check_every and (check_every < 2 or not reproducible or not manager.context.options.commit_vote):
            raise ConfigError(
                f"check_every={check_every} needs reproducible=True, commit_vote=True, and a number of at least 2."
            )
        if not 0 <= rank < ranks:
            raise ConfigError(f"rank {rank} is not among the {ranks} ranks that share a slot.")
        self._manager, self._options = manager, options
        self._length, self._seed, self._shuffle = length, seed, shuffle
        self._rank, self._ranks = rank, ranks
        manager.steps.data.use(DataState(seed, length, digest), options)
        sizes = f"{length} samples, {options.slots} slots of {micro_batch}"
        order: dict[str, object] = {"seed": seed, "shuffle": shuffle, "policy": policy, "tail": tail}
        order |= {"reproducible": reproducible, "check_every": check_every}
        manager.declare(ORDER, sizes, [f"{name} {value}" for name, value in {**order, "digest": digest}.items()])

    @property
    def position(self) -> DataState:
        """Position after the last committed step."""
        data = self._manager.context.step.data
        assert isinstance(data, DataState), "set by this class"
        return data

    @property
    def epoch(self) -> int:
        """Number of epochs of which every sample is committed."""
        return self.position.completed

    def step(self) -> Iterator[Micro]:
        """Yield the micro batches of the step that ``zero_grad()`` has started, without their data.

        Raises the errors of `Manager.wait_quorum`, and `StepError` before the first step and for a second loop in one.
        """
        data = self._manager.steps.data
        dealt = data.deal()
        for slot in data.each_slot(dealt):
            if slot is None or dealt is None:
                yield self._spare()
                continue
            micro = self.micro(dealt.data, dealt.options, slot)
            if self._options.reproducible:
                _seed_generators(_seed_of(self._seed, self._manager.current_step(), slot, self._rank))
            yield replace(micro, counts=False) if slot == dealt.extra else micro

    def micro(self, data: Position, options: DataOptions, slot: int) -> Micro:
        """Return this rank's part of a slot of the step at `data`."""
        assert isinstance(data, DataState), "set by this class"
        found = samples(data.slot(slot, options))
        part = len(found) // self._ranks
        return Micro([self._sample(*sample) for sample in found[self._rank * part : (self._rank + 1) * part]])

    def _sample(self, epoch: int, position: int) -> Sample:
        index = permute(position, self._length, self._seed, epoch) if self._shuffle else position
        return Sample(epoch, position, index)

    def _spare(self) -> Micro:
        """Return a micro batch that doesn't count."""
        size = max(1, self._options.batch // self._ranks)
        return Micro([self._sample(0, p % self._length) for p in range(size)], counts=False)


def _options(
    length: int, micro_batch: int, global_batch: int | None, policy: str, tail: str, ranks: int, weight: int
) -> DataOptions:
    if policy not in {p.value for p in Policy}:
        raise ConfigError(f"policy is {policy!r}; choose one of {', '.join(p.value for p in Policy)}.")
    if tail not in {t.value for t in Tail}:
        raise ConfigError(f"tail is {tail!r}; choose one of {', '.join(t.value for t in Tail)}.")
    if min(length, micro_batch, ranks, weight) < 1:
        raise ConfigError(
            f"{length} samples, micro_batch {micro_batch}, ranks {ranks}, weight {weight}: each is at least 1."
        )
    if micro_batch % ranks:
        raise ConfigError(
            f"micro_batch {micro_batch} can't be divided among the {ranks} ranks of a group; choose a multiple of {ranks}."
        )
    if (global_batch is None) != (policy == Policy.SHRINK.value):
        raise ConfigError(
            f"policy {policy!r} {'needs a' if global_batch is None else 'takes no'} global_batch: with 'shrink' each group has "
            "one slot of micro_batch samples, else the global batch is constant."
        )
    slots = 1 if global_batch is None else global_batch // micro_batch
    if global_batch is not None and (slots < 1 or global_batch % micro_batch):
        raise ConfigError(f"global_batch {global_batch} is no multiple of micro_batch {micro_batch}.")
    options = DataOptions(Policy(policy), slots, micro_batch, Tail(tail), weight)
    if not options.used(length):
        raise ConfigError(
            f"{length} samples don't fill one step of {slots * micro_batch}, so tail 'drop' would leave out all; choose another."
        )
    if options.tail is Tail.SHORT and length % ranks:
        raise ConfigError(f"tail 'short' needs a number of samples that can be divided by {ranks} ranks, not {length}.")
    return options


def _seed_generators(seed: int) -> None:
    """Seed torch's generators of the CPU and of all devices of the accelerator, if there is one.

    `torch.manual_seed` takes 110 us, and holds locks for which a loader's worker waits forever if it is forked meanwhile.
    """
    torch.default_generator.manual_seed(seed)
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None:
        module = torch.get_device_module(accelerator)
        getattr(module, "manual_seed_all", module.manual_seed)(seed)


def _seed_of(*numbers: int) -> int:
    data = hashlib.blake2b("/".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(data, "big") >> 1
