"""TorchX's Kubernetes request for an app of ours, as JSON; run by the interpreter of either line: ``-m ... OPTIONS``.

No cluster is contacted. The app is written by hand, as app.py renders it, so that the golden file only depends on the
request.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

from torchx import specs
from torchx.schedulers import kubernetes_scheduler

from torchft_x import env
from torchft_x.launch.schedulers.role import FtRole, RoleFacts


def answer(*, patched: str = "", **options: Any) -> dict[str, Any]:
    """Return the request, with further facts that tests check.

    `patched`: the first role's image after a workspace build.
    """
    app = make_app(**options)
    if patched:
        app.roles[0].image = patched  # as TorchX does before it makes the request
    cfg: dict[str, Any] = {"queue": "default"}
    scheduler = kubernetes_scheduler.create_scheduler("session")
    if "validate_spec" in scheduler.run_opts()._opts:
        cfg["validate_spec"] = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchX warns about retries
        info = scheduler.submit_dryrun(app, cfg)
    states = kubernetes_scheduler.JOB_STATE
    job = kubernetes_scheduler.sanitize_for_serialization(info.request.resource)
    return {"app": repr(app), "job": job, "completing": str(states.get("Completing"))}


def make_app(
    *,
    name: str = "ft",
    kinds: tuple[str, ...] = ("lighthouse", "trainer"),
    groups: int = 2,
    nodes: int = 1,
    min_replicas: int = 1,
    run_dir: str = "/home/me/runs/1",
    mounts: tuple[str, ...] = (),
    variables: dict[str, str] | None = None,
    image: str = "img:1",
    sidecar_image: str = "img:1",
    gpu: int = 0,
    max_retries: int = 0,
    lighthouses: int = 1,
) -> specs.AppDef:
    own = "lighthouse" in kinds and "trainer" in kinds
    variables = {
        env.RUN_DIR: run_dir,
        **({env.LIGHTHOUSE_AT: "${rank0_env}:30123"} if own and lighthouses == 1 else {}),
        **(variables or {}),
    }
    common = ["-m", "torchft_x"]
    run = ["--run_dir", run_dir]
    script = ["--", "train.py", "--run_dir", "the script's own"]
    args = {
        "lighthouse": [*common, "lighthouse", "--min_replicas", str(min_replicas), *run],
        "trainer": [*common, "supervise", "--group", "${replica_id}", "--groups", str(groups), *run, *script],
        "sidecar": [*common, "accompany", "--name", "evaluator", *run, "--", "evaluate.py"],
    }
    if own:
        args["lighthouse"] += ["--job_groups", ",".join(str(g) for g in range(groups))]
        args["lighthouse"] += ["--lease_dir", f"{run_dir}/lighthouses/${{app_id}}"] if lighthouses > 1 else []
    elif "lighthouse" in kinds:
        args["lighthouse"] += ["--bind", "[::]:29510"]
    roles = [
        FtRole(
            name={"sidecar": "evaluator"}.get(kind, kind),
            image=sidecar_image if kind == "sidecar" else image,
            entrypoint="python",
            args=args[kind],
            env=dict(variables),
            num_replicas={"trainer": groups * nodes, "lighthouse": lighthouses}.get(kind, 1),
            max_retries=max_retries,
            resource=specs.Resource(cpu=1, gpu=gpu if kind == "trainer" else 0, memMB=2048),
            mounts=specs.parse_mounts(list(mounts)),
            ft=RoleFacts(
                kind=kind,  # type: ignore[arg-type]
                groups=groups,
                nodes=nodes,
                min_replicas=min_replicas,
                own_lighthouse=own,
                lighthouses=lighthouses,
            ),
        )
        for kind in kinds
    ]
    return specs.AppDef(name=name, roles=list(roles))


if __name__ == "__main__":
    print(json.dumps(answer(**json.loads(sys.argv[1]))))
