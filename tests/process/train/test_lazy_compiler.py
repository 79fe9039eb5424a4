"""torch's compiler isn't loaded before something is compiled, and works as if it had been."""

from __future__ import annotations

import json

import pytest

from tests.process.programs import python

TRAINING = """
import json, sys
import torch, torch.distributed as dist
from torch import nn
torch.manual_seed(0)
DEFER
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
model = nn.Linear(4, 4)
if sys.argv[1] == "sharded":
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
def step(x):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return x + 1
step(torch.ones(2, 4))
optimizer.load_state_dict(optimizer.state_dict())
loaded = "torch._dynamo.eval_frame" in sys.modules
"""
THEN_COMPILED = """
from torchft_x.train.lazy_compiler import defer_compiler_import
compiled = torch.compile(step, backend="eager")
for _ in range(2):
    compiled(torch.ones(2, 4))
defer_compiler_import()
import torch._dynamo
counters = torch._dynamo.utils.counters
breaks = {k.split(chr(10))[0]: v for k, v in counters["graph_break"].items()}
print(json.dumps({"loaded": loaded, "compiled": counters["frames"]["ok"] > 0, "breaks": breaks, "weights": [p.tolist() for p in model.parameters()],
                  "settings": torch._dynamo.config is sys.modules["torch._dynamo.config"]}))
"""
DEFER = "from torchft_x import defer_compiler_import; defer_compiler_import()"


def run(text: str, *words: str) -> str:
    return python("-c", text, *words).stdout


def test_a_sharded_model_trains_without_it() -> None:
    assert run(TRAINING.replace("DEFER", DEFER) + "print(loaded)", "sharded").strip() == "False"


def test_names_of_it_load_it() -> None:
    text = f"import sys, torch; {DEFER}; torch._dynamo.config.verbose; before = set(sys.modules)\n"
    text += "assert not hasattr(torch._dynamo, '__file__')\n"
    text += "from torch._dynamo import is_compiling; import torch._dynamo.utils; print(is_compiling(), len(set(sys.modules) - before) > 300)"
    assert run(text).split() == ["False", "True"]


@pytest.mark.extended
def test_what_is_compiled_later_is_compiled_as_ever() -> None:
    """The optimizer's step in it, too: the same breaks between graphs, the same weights."""
    late, ever = (json.loads(run(TRAINING.replace("DEFER", d) + THEN_COMPILED, "plain")) for d in (DEFER, ""))
    assert (late.pop("loaded"), ever.pop("loaded")) == (False, True)
    assert late == ever
    assert ever["compiled"]
    assert len(ever["breaks"]) > 1
