"""Example of a custom component: training with two groups, and an evaluator beside them.

    torchx run -s local_cwd ./my_component.py:my_job --replicas 3 -- --lr 0.05

TorchX reads this file as text. At the top it may hold imports and whole `def`s with plain annotations only.
"""

from typing import Any

from torchx import specs

from torchft_x import ExtraRole, ft_app


def my_job(
    *script_args: str,
    steps: int = 200,
    replicas: int = 2,
    run_dir: str = "",
    image: str = "",
    cpu: int = 2,
    mail: str = "",
) -> specs.AppDef:
    """Train a small regression, and evaluate the newest model meanwhile.

    Args:
        script_args: arguments of train.py, after --
        steps: committed steps to train
        replicas: replica groups
        run_dir: shared directory of the run; a new one below runs/ if empty
        image: container image, where the scheduler uses one
        cpu: cores of one group
        mail: on Slurm, address to notify when the job ends
    """

    def tell(scheduler: str, info: Any) -> None:
        if scheduler == "slurm" and mail:
            for replica in info.request.replicas.values():
                replica.sbatch_opts |= {"mail-user": mail, "mail-type": "END"}

    return ft_app(
        "train.py",
        ["--steps", str(steps), *script_args],
        name="my-job",
        replicas=replicas,
        run_dir=run_dir,
        image=image,
        cpu=cpu,
        env={"OMP_NUM_THREADS": "1"},
        extra_roles=[ExtraRole("evaluator", ["python", "evaluate.py"], memMB=2048)],
        hooks=[tell],
    )
