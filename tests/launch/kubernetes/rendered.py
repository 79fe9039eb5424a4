"""The components' objects as docs/examples/kubernetes shows them: ``python -m tests.launch.kubernetes.rendered`` writes them."""

from __future__ import annotations

from pathlib import Path

from torchx.specs import AppDef

from torchft_x.launch.job.build import diloco_app, ft_app, lighthouse_app
from torchft_x.launch.kubernetes import options
from torchft_x.launch.kubernetes.app import request
from torchft_x.launch.plugin.kubernetes import as_yaml

FOLDER = Path(__file__).parents[3] / "docs/examples/kubernetes"


def rendered() -> dict[str, str]:
    """By the component's name."""
    image = {"image": "registry/train:7"}
    job = {**image, "replicas": 2, "run_dir": "/runs/1"}
    apps = {
        "ddp": ft_app("train.py", name="ddp", **job),
        "hsdp": ft_app("train.py", name="hsdp", workers_per_replica=16, nodes_per_replica=2, gpu=8, cpu=64, **job),
        "diloco": diloco_app("train.py", name="diloco", gpu=1, **job),
        "lighthouse": lighthouse_app(name="lighthouse", token_file="/run/token/token", min_replicas=1, **image),
    }

    def text(app: AppDef) -> str:
        wishes = options.wishes(options.run_opts().resolve({}))
        return as_yaml(request(app, "1a2b3c4d", wishes, "nvidia.com/gpu"))

    return {name: text(app) for name, app in apps.items()}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in rendered().items():
        (FOLDER / f"{name}.yaml").write_text(text)


if __name__ == "__main__":
    main()
