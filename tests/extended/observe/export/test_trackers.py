"""TensorBoard and Weights & Biases themselves, fed by a script that trains (`--track`)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.extended.serving import lighthouse
from tests.interpreters import TRAINERS_PYTHON
from tests.util import scaled
from torchft_x import env

pytestmark = [pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[4]
HOW = (
    f"{TRAINERS_PYTHON} is not set: the Python of an environment with torchft_x, torch, tensorboard and wandb "
    "(./scripts/test --extended makes one)"
)
STEPS = 12

# Each prints {name: [[step, value], ...]} of what the tool itself reads from its files.
TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator(sys.argv[1] + "/group-0")
read.Reload()
print(json.dumps({tag: [[e.step, e.value] for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}))
"""
# Its file is a log of LevelDB's: after 7 bytes of its own, blocks of 32 KiB with pieces of records, each of which has a header
# of 7 bytes (checksum, length, kind: 1 whole, 2 first, 3 middle, 4 last).
WANDB = """
import glob, json, struct, sys
from wandb.proto.wandb_internal_pb2 import Record
data, found, at, record = open(glob.glob(sys.argv[1] + "/wandb/offline-run-*/run-*.wandb")[0], "rb").read(), {}, 7, b""
while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    length, kind = struct.unpack_from("<HB", data, at + 4)
    record, at = record + data[at + 7 : at + 7 + length], at + 7 + length
    if kind in (1, 4):
        read, record = Record.FromString(record), b""
        items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in read.history.item}
        for name, value in items.items():
            if not name.startswith("_"):
                found.setdefault(name, []).append([items["_step"], value])
print(json.dumps(found))
"""


@pytest.mark.parametrize(("tool", "reader"), [("tensorboard", TENSORBOARD), ("wandb", WANDB)])
def test_the_tool_has_each_step(tmp_path: Path, tool: str, reader: str) -> None:
    python = env.read(TRAINERS_PYTHON)
    if python is None:
        pytest.skip(HOW)
    with lighthouse(tmp_path) as address:
        trainer = [python, "-m", "torchft_x", "supervise", "--group", "0", "--groups", "1", "--run_dir"]
        trainer += [str(tmp_path / "run"), "--", str(ROOT / "scripts/train_ddp.py"), "--steps", str(STEPS)]
        trainer += ["--log-every", "4", "--layers", "1", "--width", "32", "--data-mb", "0.1"]
        trainer += ["--track", f"{tool}:{tmp_path if tool == 'tensorboard' else 'made'}"]
        environ = {**env.everything(), env.LIGHTHOUSE: address, "PYTHONPATH": str(ROOT)}
        environ |= {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
        done = subprocess.run(trainer, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=scaled(60))
        assert done.returncode == 0, done.stderr
    read = subprocess.run([python, "-c", reader, str(tmp_path)], capture_output=True, text=True, timeout=scaled(30))
    assert read.returncode == 0, read.stderr
    numbers = json.loads(read.stdout)
    assert [step for step, _ in numbers["step_seconds"]] == list(range(1, STEPS + 1))
    assert all(seconds > 0 for _, seconds in numbers["step_seconds"])
    assert {value for _, value in numbers["groups"]} == {1}
    assert [step for step, _ in numbers["loss"]] in ([5, 9], [4, 8, 12], [5, 9, 13])
