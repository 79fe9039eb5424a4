"""A component for the tests: two groups over two nodes, all processes of this host."""

import sys

import torchx.specs as specs


def job(*script_args: str, run_dir: str, script: str = "scripts/train_ddp.py", workers: int = 2) -> specs.AppDef:
    """2 groups x 2 nodes.

    Args:
        script_args: of the script
        run_dir: shared run directory
        script: what each worker runs
        workers: of a group
    """
    from torchft_x.launch.role import FtRole, RoleFacts

    env = {"TORCHFT_X_RUN_DIR": run_dir, "PYTHONUNBUFFERED": "1"}
    lighthouse = ["-m", "torchft_x", "lighthouse", "--bind", "[::]:0", "--min_replicas", "1", "--job_groups", "0,1"]
    trainer = ["-m", "torchft_x", "supervise", "--replica", "${replica_id}", "--nodes", "2", "--groups", "2"]
    trainer += ["--workers", str(workers), "--run_dir", run_dir, "--", script, *script_args]
    return specs.AppDef(
        name="nodes",
        roles=[
            FtRole(
                name="lighthouse",
                image="",
                entrypoint=sys.executable,
                args=[*lighthouse, "--run_dir", run_dir],
                env=env,
                ft=RoleFacts(kind="lighthouse", groups=2),
            ),
            FtRole(
                name="trainer",
                image="",
                entrypoint=sys.executable,
                args=trainer,
                env=env,
                num_replicas=4,
                ft=RoleFacts(kind="trainer", groups=2, nodes=2),
            ),
        ],
    )
