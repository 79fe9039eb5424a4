"""What `local_docker` asks Docker for: TorchX's own requests on both its lines, adjusted. No Docker is there.

More of what is asked for, without TorchX's command: tests/unit/launch/test_docker.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.unit.launch.lines import BOTH, torchx
from torchft_x import env


class Loader(yaml.SafeLoader):
    """Reads TorchX's print of a request, which names its classes."""


Loader.add_multi_constructor(
    "tag:yaml.org,2002:python/object", lambda loader, _, node: loader.construct_mapping(node, deep=True)
)


def ask(*options: str, line: str) -> dict[str, dict[str, Any]]:
    """By name of role and number: command, environment, image and mounts."""
    words = ["run", "-s", "local_docker", "--workspace", "", "--dryrun", "./components.py:ddp", *options]
    done = torchx(*words, line=line)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for c in yaml.load(done.stdout.split("=== SCHEDULER REQUEST ===")[1], Loader):
        labels = c["kwargs"]["labels"]
        name = f"{labels['torchx.pytorch.org/role-name']}-{labels['torchx.pytorch.org/replica-id']}"
        found[name] = {"words": c["command"], "image": c["image"], "env": c["kwargs"]["environment"]}
    return found


@pytest.mark.parametrize("line", BOTH)
def test_containers_that_share_nothing_find_each_other(line: str) -> None:
    asked = ask("--image", "img:1", "--", "--run_dir", "the script's own", line=line)
    assert sorted(asked) == ["lighthouse-0", "trainer-0", "trainer-1"]
    commands = {c["words"][c["words"].index("--run_dir") + 1] for c in asked.values()}
    named = commands | {c["env"][env.RUN_DIR] for c in asked.values()}
    assert named == {"/tmp/torchft_x/run"}  # not the submitter's path
    assert asked["trainer-1"]["words"][-2:] == ["--run_dir", "the script's own"]
    (token,) = {c["env"][env.TOKEN] for c in asked.values()}
    assert len(token) > 30
    trainer = asked["trainer-0"]["env"]
    assert trainer[trainer[env.LIGHTHOUSE_AT].partition(":")[0]].endswith("-lighthouse-0")
    assert ask("--image", "img:1", line=line)["trainer-0"]["env"][env.TOKEN] != token
