"""HuggingFace's Trainer over replica groups that may leave and rejoin: docs/trainers.md.

Each group has one process. `FaultTolerantTrainer` is the only addition to an ordinary script for `transformers`.
"""

import argparse
import os
from types import MethodType

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from torchft_x import DistributedSampler, Manager, ProcessGroupGloo


class FaultTolerantTrainer(Trainer):
    """Trainer whose optimizer steps are committed by all groups or by none. `global_step` counts committed steps."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if self.args.fp16:
            raise ValueError(
                "fp16 needs a gradient scaler, which may skip a step that the other groups wait for, and whose state a group "
                "that comes back would lack: use bf16."
            )
        self.manager = Manager(
            pg=ProcessGroupGloo(), state_dict=self._save_all, load_state_dict=self._load_all, min_replica_size=1
        )
        self.add_callback(_Steps(self.manager))

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

    def _get_train_sampler(self, dataset=None):
        groups = int(os.environ["NUM_REPLICA_GROUPS"])
        group = int(os.environ["REPLICA_GROUP_ID"])
        return DistributedSampler(self.train_dataset, group, groups, group_rank=0, num_replicas=1)

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

    def _clip_grad_norm(self, model):
        """Average the gradients of a step before they are clipped, so that all groups clip by the same norm."""
        works = [self.manager.allreduce(p.grad) for p in model.parameters() if p.grad is not None]
        for work in works:
            work.wait()
        return super()._clip_grad_norm(model)


class _Steps(TrainerCallback):
    """Callback that starts a quorum before each step, and keeps `global_step` equal to the Manager's step."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        if state.global_step:  # resume_from_checkpoint
            self._manager.load_state_dict({"step": state.global_step, "batches_committed": 0})

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self._manager.start_quorum()

    def on_step_end(self, args, state, control, **kwargs) -> None:
        state.global_step = self._manager.current_step()
        control.should_training_stop = state.global_step >= state.max_steps

    def on_train_end(self, args, state, control, **kwargs) -> None:
        self._manager.shutdown()


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
        per_device_train_batch_size=8, gradient_accumulation_steps=2, bf16=args.bf16, torch_compile_backend=args.compile, logging_steps=20,
        save_strategy="steps" if args.save_steps else "no", save_steps=args.save_steps or 1, save_total_limit=2,
        report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = FaultTolerantTrainer(model=GPT2LMHeadModel(config), args=training, train_dataset=Counting())
    trainer.train(resume_from_checkpoint=args.resume or None)
    digest = sum(float(p.detach().double().sum()) for p in trainer.model.parameters())
    print(f"done at step {trainer.state.global_step}: sum of the weights {digest:.12f}", flush=True)


if __name__ == "__main__":
    main()
