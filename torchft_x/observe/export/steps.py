"""A hook after each committed step for tools that record numbers: TensorBoard, Weights & Biases, a file."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.observe.events import subscribe

OnStep = Callable[[int, Mapping[str, float]], object]


def on_step(call: OnStep, *, rank: int = 0) -> Callable[[], None]:
    """Call `call(step, numbers)` after each committed step of this process, and return the function that ends this.

    `step`: number of committed steps so far. `numbers`: ``step_seconds`` and ``reduce_seconds``; ``groups`` that
    contributed; ``bytes`` that were reduced; ``dropped`` steps so far; ``losses`` of other groups so far; after a heal
    ``heal_seconds``; and the numbers that the script gave to `Manager.log` since the last step. Unknown numbers are
    absent.

    Only events of the Manager with this group rank count, among several ranks of a group or several Managers in a
    process. `call` runs on the training thread, between two steps, so it must be quick. Its exceptions become warnings.
    """
    return subscribe(_Steps(call, rank).receive)


class _Steps:
    def __init__(self, call: OnStep, rank: int) -> None:
        self._call = call
        self._rank = rank
        self._dropped = 0
        self._lost = 0
        self._given: dict[str, float] = {}  # numbers for the next commit

    def receive(self, event: dict[str, Any]) -> None:
        if event.get("rank", 0) != self._rank:
            return
        name = event["event"]
        if name == "commit":
            self._commit(event)
        elif name == "drop":
            self._dropped += 1
        elif name == "member_lost" and not event.get("left"):
            self._lost += 1
        elif name == "heal_end":
            self._given["heal_seconds"] = event["duration"]
        elif name == "metrics":
            self._given |= {k: v for k, v in event.items() if k not in _NO_NUMBERS and isinstance(v, (int, float))}

    def _commit(self, event: dict[str, Any]) -> None:
        named = {"step_seconds": "duration", "reduce_seconds": "reduction", "groups": "participants", "bytes": "bytes"}
        numbers = {name: event[field] for name, field in named.items() if event.get(field) is not None}
        given, self._given = self._given, {}
        numbers |= {"dropped": self._dropped, "losses": self._lost, **given}
        try:
            self._call(event["step"] + 1, numbers)
        except Exception as e:
            warnings.warn(f"on_step: {e!r}", RuntimeWarning, stacklevel=2)


_NO_NUMBERS = frozenset(["t", "mono", "pid", "rank", "attempt", "step"])


def track(where: str) -> None:
    """Send the numbers of `on_step` to a tool, as one run per replica group. Only rank 0 of a group sends.

    `where` is ``tensorboard:FOLDER`` or ``wandb:PROJECT``. Raises `ConfigError` if it is neither, or if the tool is not
    installed.
    """
    tool, _, name = where.partition(":")
    if tool not in ("tensorboard", "wandb") or not name:
        raise ConfigError(f"--track {where} is neither tensorboard:FOLDER nor wandb:PROJECT.")
    if env.read_int(env.RANK, 0):
        return
    run = f"group-{env.read(env.REPLICA_GROUP_ID, '0')}"
    try:
        if tool == "tensorboard":
            writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(os.path.join(name, run))
            on_step(lambda step, numbers: [writer.add_scalar(key, value, step) for key, value in numbers.items()])
        else:
            wandb = importlib.import_module("wandb")
            wandb.init(project=name, name=run)
            on_step(lambda step, numbers: wandb.log(dict(numbers), step=step))
    except ModuleNotFoundError as e:
        raise ConfigError(f"--track {where}: {e}; `pip install {tool}` first.") from None
