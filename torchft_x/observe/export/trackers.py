"""Sends the numbers of each committed step to TensorBoard or Weights & Biases."""

from __future__ import annotations

import importlib
import os

from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.observe.export.steps import on_step


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
