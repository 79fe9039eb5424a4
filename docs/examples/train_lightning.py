"""Lightning over replica groups that may leave and rejoin: docs/trainers.md.

Each group has one process and one optimizer. `FaultTolerantStrategy` is the only addition to an ordinary script for
Lightning.
"""

import argparse
from types import MethodType

import lightning
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils.data import DataLoader, TensorDataset

from torchft_x import DistributedDataParallel, ElasticLoader, Manager, ProcessGroupGloo


class FaultTolerantStrategy(SingleDeviceStrategy):
    """Strategy whose optimizer steps are committed by all groups or by none. Training ends after `steps` committed steps.

    Each sample of `dataset` is committed exactly once per epoch. `data`: further arguments of `ElasticLoader`.
    """

    def __init__(self, steps: int, dataset, device: str = "cpu", **data) -> None:
        super().__init__(device=torch.device(device))
        self._steps, self._dataset, self._data = steps, dataset, data

    def setup(self, trainer) -> None:
        super().setup(trainer)
        if getattr(self.precision_plugin, "scaler", None) is not None:
            raise ValueError(
                "16-mixed needs a gradient scaler, which may skip a step that the other groups wait for, and whose state a "
                "group that comes back would lack: use bf16-mixed."
            )
        (optimizer,) = self.optimizers
        plain = optimizer.step
        self.manager = Manager(
            pg=ProcessGroupGloo(), state_dict=self._save_all, load_state_dict=self._load_all, min_replica_size=1
        )
        self.samples = ElasticLoader(self.manager, self._dataset, **self._data)
        self.model = DistributedDataParallel(self.manager, self.model)

        def step(_, closure):
            self.manager.start_quorum()
            optimizer.zero_grad()
            loss = closure()  # forward and backward of each micro batch, average, clip
            self._committed = self.manager.should_commit()
            if self._committed:
                plain()
            done = self.manager.current_step()
            trainer.should_stop = done >= self._steps
            if self._committed and done % 20 == 0:
                print(f"step {done}: loss {float(loss):.4f}", flush=True)
            return loss

        optimizer.step = MethodType(step, optimizer)  # a method, as torch's schedulers require
        module = self.lightning_module
        schedule = module.lr_scheduler_step
        # A dropped step must change nothing, since it is run again.
        module.optimizer_zero_grad = lambda *args: None  # the micro batches of a step accumulate
        module.lr_scheduler_step = lambda *a, **k: schedule(*a, **k) if self._committed else None

    def optimizer_step(self, optimizer, closure, model=None, **kwargs):
        def all_micro_batches():
            for micro in self.samples.step():
                self._batch = self.batch_to_device(micro.batch, self.root_device)
                loss = closure()
            return loss

        return super().optimizer_step(optimizer, all_micro_batches, model, **kwargs)

    def training_step(self, batch, *args, **kwargs):
        return super().training_step(self._batch, *args, **kwargs)

    def _save_all(self) -> dict:
        schedulers = [c.scheduler.state_dict() for c in self.lr_scheduler_configs]
        return {
            "model": self.lightning_module.state_dict(),
            "optim": self.optimizers[0].state_dict(),
            "schedulers": schedulers,
        }

    def _load_all(self, state: dict) -> None:
        self.lightning_module.load_state_dict(state["model"])
        self.optimizers[0].load_state_dict(state["optim"])
        for config, saved in zip(self.lr_scheduler_configs, state["schedulers"], strict=True):
            config.scheduler.load_state_dict(saved)

    def teardown(self) -> None:
        self.samples.close()
        self.manager.shutdown(finished=self.manager.current_step() >= self._steps)
        super().teardown()


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.9), "interval": "step"}]


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--precision", default="32-true", help="or bf16-mixed")
    p.add_argument("--compile", metavar="BACKEND", nargs="?", const="inductor", help="the model, by torch.compile")
    args = p.parse_args()
    torch.manual_seed(0)
    x = torch.randn(4096, 8, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, x.mean(1, keepdim=True))
    strategy = FaultTolerantStrategy(args.steps, data, global_batch=64, micro_batch=16)
    trainer = lightning.Trainer(
        strategy=strategy, precision=args.precision, max_epochs=-1, gradient_clip_val=1.0, use_distributed_sampler=False,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = Regression()
    trainer.fit(
        torch.compile(model, backend=args.compile) if args.compile else model,
        DataLoader(range(10**9)),  # counts the steps; the strategy takes the samples
    )
    digest = sum(float(p.detach().double().sum()) for p in model.parameters())
    print(f"done at step {strategy.manager.current_step()}: sum of the weights {digest:.12f}", flush=True)


if __name__ == "__main__":
    main()
