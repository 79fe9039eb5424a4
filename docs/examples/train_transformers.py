"""HuggingFace's Trainer over replica groups that may leave and rejoin: docs/trainers.md.

Each group has one process. `FaultTolerantTrainer` is the only addition to an ordinary script for `transformers`.
"""

import argparse
import json
import os
from pathlib import Path
from types import MethodType

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from torchft_x import DistributedDataParallel, ElasticLoader, Manager, ProcessGroupGloo


class FaultTolerantTrainer(Trainer):
    """Trainer whose optimizer steps are committed by all groups or by none. `global_step` counts committed steps.

    `training_step` computes all micro batches of this group's part of a step, so that each sample is committed exactly
    once per epoch. `global_batch` is the number of samples of a step of all groups together.
    """

    def __init__(self, *args, global_batch: int, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if self.args.fp16:
            raise ValueError(
                "fp16 needs a gradient scaler, which may skip a step that the other groups wait for, and whose state a group "
                "that comes back would lack: use bf16."
            )
        if self.args.gradient_accumulation_steps > 1:
            raise ValueError("gradient_accumulation_steps is not used: a step has global_batch samples.")
        self.manager = Manager(
            pg=ProcessGroupGloo(), state_dict=self._save_all, load_state_dict=self._load_all, min_replica_size=1
        )
        self.samples = ElasticLoader(
            self.manager, self.train_dataset, collate_fn=self.data_collator, global_batch=global_batch, seed=self.args.seed,
            micro_batch=self.args.per_device_train_batch_size, num_workers=self.args.dataloader_num_workers,
        )  # fmt: skip
        self._model = None  # the model as `Trainer` has prepared it, with gradients averaged over the groups
        self.add_callback(_Steps(self))

    def _save_all(self) -> dict:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.lr_scheduler.state_dict(),
        }

    def _load_all(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.lr_scheduler.load_state_dict(state["scheduler"])

    def get_train_dataloader(self):
        return DataLoader(range(10**9))  # never read: `Trainer` asks for a batch before it begins the step

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        return [{}], None

    def training_step(self, model, inputs, num_items_in_batch=None):
        losses = [super(FaultTolerantTrainer, self).training_step(self._model, m.batch) for m in self.samples.step()]
        return torch.stack(losses).mean()

    def create_optimizer(self, *args, **kwargs):
        optimizer = super().create_optimizer(*args, **kwargs)
        plain = optimizer.step

        def step(_, closure=None):
            committed = self.manager.should_commit()
            if committed:
                plain(closure)
            self.optimizer._is_overflow = not committed  # accelerate then skips the scheduler's step, too

        optimizer.step = MethodType(step, optimizer)  # a method, as torch's schedulers require
        return optimizer


class _Steps(TrainerCallback):
    """Callback that starts a quorum before each step, and keeps `global_step` equal to the Manager's step."""

    def __init__(self, trainer: FaultTolerantTrainer) -> None:
        self._trainer = trainer
        self._manager = trainer.manager

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self._trainer._model = DistributedDataParallel(self._manager, self._trainer.model_wrapped)
        if state.global_step:  # resume_from_checkpoint
            self._manager.load_state_dict(json.loads(self._saved(args, state).read_text()))

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self._manager.start_quorum()

    def on_step_end(self, args, state, control, **kwargs) -> None:
        state.global_step = self._manager.current_step()
        state.epoch = self._trainer.samples.position.epoch
        control.should_training_stop = state.global_step >= state.max_steps

    def on_save(self, args, state, control, **kwargs) -> None:
        self._saved(args, state).write_text(json.dumps(self._manager.state_dict()))

    def on_train_end(self, args, state, control, **kwargs) -> None:
        self._trainer.samples.close()
        self._manager.shutdown()

    def _saved(self, args, state) -> Path:
        """Return the file with the step and the position in the data in the checkpoint of this step."""
        return Path(args.output_dir, f"checkpoint-{state.global_step}", "torchft_x.json")


class Counting(Dataset):
    """Data set of sequences that count on from a random number."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, i: int) -> dict:
        start = int(torch.randint(0, 64, (1,), generator=torch.Generator().manual_seed(i)))
        tokens = (torch.arange(16) + start) % 64
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--out", default="out")
    p.add_argument("--save_steps", type=int, default=0, help="0: never. Each group saves into a folder of its own")
    p.add_argument("--resume", action="store_true", help="from the newest checkpoint of this group")
    p.add_argument("--bf16", action="store_true")
    p.add_argument("--compile", metavar="BACKEND", nargs="?", const="inductor", help="the model, by torch.compile")
    args = p.parse_args()
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    training = TrainingArguments(
        output_dir=f"{args.out}/group{os.environ['REPLICA_GROUP_ID']}", max_steps=args.steps, learning_rate=3e-3,
        per_device_train_batch_size=8, bf16=args.bf16, torch_compile_backend=args.compile, logging_steps=20,
        save_strategy="steps" if args.save_steps else "no", save_steps=args.save_steps or 1, save_total_limit=2,
        report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = FaultTolerantTrainer(
        model=GPT2LMHeadModel(config), args=training, train_dataset=Counting(), global_batch=32
    )
    trainer.train(resume_from_checkpoint=args.resume or None)
    digest = sum(float(p.detach().double().sum()) for p in trainer.model.parameters())
    print(f"done at step {trainer.state.global_step}: sum of the weights {digest:.12f}", flush=True)


if __name__ == "__main__":
    main()
