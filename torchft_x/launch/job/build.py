"""Builds an app from a component's parameters. The components in components.py and users' own components call it.

::

    from torchx import specs
    from torchft_x import ExtraRole, ft_app


    def my_job(*script_args: str, replicas: int = 2) -> specs.AppDef:
        return ft_app("train.py", script_args, replicas=replicas, extra_roles=[ExtraRole("evaluator", "evaluate.py")])

docs/write_a_component.md is the guide.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchx import specs

from torchft_x import env as environment
from torchft_x.core.training.sync_schedule import Settings
from torchft_x.core.types import FORMATS
from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch.job import run_claim
from torchft_x.launch.job.app import lighthouse_app as render_lighthouse
from torchft_x.launch.job.app import to_app
from torchft_x.launch.job.checks import check_arguments, check_mounts, check_run_dir, check_script, check_secrets
from torchft_x.launch.job.job import ExtraRole, FtJob, FtLighthouse
from torchft_x.launch.job.parse import (
    parse_addresses,
    parse_bool,
    parse_counts,
    parse_env,
    parse_mounts,
    parse_resource,
)
from torchft_x.launch.schedulers import excepthook
from torchft_x.launch.schedulers.role import Hook
from torchft_x.tls import setting_of as tls_setting

AUTO = "auto"  # value of --lighthouse: the job has its own lighthouse


def ft_app(
    script: str,
    script_args: Sequence[str] = (),
    *,
    name: str = "ft",
    replicas: int = 2,
    workers_per_replica: int = 1,
    workers_by_group: Sequence[int] = (),
    nodes_per_replica: int = 1,
    max_restarts: int = 10,
    min_replicas: int = 1,
    health: str = "",
    lighthouse: str = "",
    lighthouses: int = 1,
    run_dir: str = "",
    token_file: str = "",
    env: Mapping[str, str] | str | None = None,
    mounts: Sequence[str] | str | None = None,
    image: str = "",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 4096,
    resource: specs.Resource | None = None,
    log_level: str = "info",
    log_format: str = "text",
    debug: bool | str = False,
    extra_roles: Sequence[ExtraRole] = (),
    hooks: Sequence[Hook] = (),
    module: str = "",
    **tls: str,
) -> specs.AppDef:
    """Return a fault-tolerant job as a TorchX app, for a component of your own.

    The parameters are those of the components (docs/components.md), and five more:
    * `resource`: in place of h, cpu, gpu and memMB. `workers_by_group`: processes of each group. `extra_roles`: more programs.
    * `hooks`: functions of the scheduler's name and TorchX's dry-run info, called last. They return what is submitted, or None.
    * `module`: a Python module to run in place of a script, written for torchft (`python -m torchft_x.compat -m MODULE`).

    Print one sentence on stderr and raise `SystemExit` with code 2, which TorchX lets pass, if a parameter is wrong.
    """
    with _sentences():
        check_arguments(script, script_args)
        environ = parse_env(env, what="--env")
        addresses, source = lighthouse_addresses(lighthouse, environ)
        job = FtJob(
            script=script,
            script_args=tuple(script_args),
            module=module,
            name=name,
            replicas=replicas,
            workers_per_replica=workers_per_replica,
            workers_by_group=tuple(workers_by_group),
            nodes_per_replica=nodes_per_replica,
            max_restarts=max_restarts,
            min_replicas=min_replicas,
            health=health,
            lighthouse=addresses,
            lighthouses=lighthouses,
            lighthouse_from=source,
            run_dir=os.path.abspath(run_dir) if run_dir else new_run_dir(name),
            token_file=_here(token_file, image),
            tls=_tls(image, addresses, **tls),
            env=environ,
            mounts=parse_mounts(mounts),
            image=image,
            python=_python(image),
            resource=resource or parse_resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
            log_level=log_level,
            log_format=log_format,
            debug=parse_bool(debug, what="--debug"),
            extra_roles=tuple(extra_roles),
            hooks=tuple(hooks),
        )
        _check(job)
        return to_app(job)


def diloco_app(
    script: str,
    script_args: Sequence[str] = (),
    *,
    sync_steps: int = 10,
    num_fragments: int = 1,
    fragment_sync_delay: int = 0,
    quantize: str = "none",
    islands: str = "",
    env: Mapping[str, str] | str | None = None,
    **options: Any,
) -> specs.AppDef:
    """Return `ft_app`'s app with the settings of DiLoCo in the environment. `env` overrides them. Errors are `ft_app`'s.

    The script's own flags override both (train/fault_tolerance.py). With `islands`, the numbers of processes of the groups,
    rank 0 of each group exchanges for all of its ranks.
    """
    with _sentences():
        counts = parse_counts(islands, what="--islands")
        try:
            Settings(sync_every=sync_steps, fragments=num_fragments, delay=fragment_sync_delay)
        except ConfigError as e:
            sentence = (
                str(e).replace("sync_every", "--sync_steps").replace("the number of fragments", "--num_fragments")
            )
            raise ConfigError(sentence.replace("fragment_sync_delay", "--fragment_sync_delay")) from None
        if quantize not in ("none", *FORMATS):
            raise ConfigError(f"--quantize {quantize!r} is not one of none, {', '.join(FORMATS)}.")
        if counts and num_fragments > 1:
            raise ConfigError(
                f"--num_fragments is {num_fragments}, and islands exchange the whole model at once; leave it out."
            )
        section: dict[str, Any] = {
            "sync_steps": sync_steps,
            "num_fragments": num_fragments,
            "fragment_sync_delay": fragment_sync_delay,
        }
        section |= {"should_quantize": quantize} if quantize != "none" else {}
        section |= {"rank0_synchronization_only": True} if counts else {}
        environ = {environment.FAULT_TOLERANCE: json.dumps(section), **parse_env(env, what="--env")}
    return ft_app(script, script_args, env=environ, workers_by_group=counts, **options)


def titan_app(
    script_args: Sequence[str] = (),
    *,
    module: str,
    config: str,
    env: Mapping[str, str] | str | None = None,
    **options: Any,
) -> specs.AppDef:
    """Return `ft_app`'s app for torchtitan's train module (docs/trainers.md). Errors are `ft_app`'s."""
    words = ("--module", module, "--config", config, *script_args)
    # A background thread of pyarrow's would prevent forking a group's next workers from a warm process.
    with _sentences():
        environ = {"JE_ARROW_MALLOC_CONF": "background_thread:false", **parse_env(env, what="--env")}
    return ft_app("", words, module="torchft_x.compat.titan", env=environ, **options)


def lighthouse_app(
    *,
    run_dir: str = "",
    token_file: str = "",
    image: str = "",
    lease_dir: str = "",
    state_file: str = "",
    tls: str = "",
    tls_cert: str = "",
    tls_key: str = "",
    tls_ca: str = "",
    **parameters: Any,
) -> specs.AppDef:
    """Return the app of a stand-alone lighthouse. The parameters are the fields of `FtLighthouse`. Errors are `ft_app`'s."""
    with _sentences():
        job = FtLighthouse(
            state_file=_here(state_file, image),
            lease_dir=_here(lease_dir, image),
            run_dir=os.path.abspath(run_dir) if run_dir else "",
            token_file=_here(token_file, image),
            tls=_tls(image, (), tls=tls, tls_cert=tls_cert, tls_key=tls_key, tls_ca=tls_ca),
            image=image,
            python=_python(image),
            **parameters,
        )
        if not image:
            if job.run_dir:
                check_run_dir(job.run_dir)
            check_secrets(job)
        return render_lighthouse(job)


def _check(job: FtJob) -> None:
    """Raise `ConfigError` unless this file system has the files that the job needs, and a free run directory.

    With an image only the job's machines can tell. Print a warning if a node has more GPUs than workers, which may use
    several.
    """
    if not job.image:
        if not job.module:
            check_script(job.script)
        check_run_dir(job.run_dir)
        run_claim.check(Path(job.run_dir))
        for role in job.extra_roles:
            words = role.words(job.python)
            if not role.image and words[0] == job.python and len(words) > 1 and words[1].endswith(".py"):
                check_script(words[1], whose=f"of the extra role {role.name!r} ")
        check_secrets(job)
        check_mounts(job.mounts)
    if job.unused_gpus:
        gpu = job.resource.gpu
        print(
            f"torchft_x: each node of a group gets {gpu} GPUs and {gpu - job.unused_gpus} of them a worker; unless your "
            f"workers use several, give --workers_per_replica {gpu * job.nodes_per_replica}.",
            file=sys.stderr,
        )


def lighthouse_addresses(parameter: str, env: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Return the lighthouses' addresses, none for the job's own lighthouse, and the name of their source for messages.

    The parameter takes precedence over --env, and that over the environment. Raise `ConfigError` if they contradict.
    """
    given = env.get(environment.LIGHTHOUSE) or environment.read(environment.LIGHTHOUSE) or AUTO
    if parameter == AUTO and given != AUTO:
        raise ConfigError(
            f"--lighthouse auto asks for a lighthouse of the job's own, but {environment.LIGHTHOUSE} is {given}; "
            "leave --lighthouse out to use that one, or unset the variable."
        )
    word, source = (parameter, "--lighthouse") if parameter else (given, environment.LIGHTHOUSE)
    return (() if word == AUTO else parse_addresses(word, what=source)), source


def _tls(
    image: str, lighthouses: Sequence[str], *, tls: str = "", tls_cert: str = "", tls_key: str = "", tls_ca: str = ""
) -> str:
    """Return the value of TORCHFT_X_TLS for the job. A lighthouse at an https:// address implies it."""
    implied = any(address.startswith("https://") for address in lighthouses)
    files = (_here(file, image) for file in (tls_cert, tls_key, tls_ca))
    return tls_setting("on" if implied and not tls else tls, *files)


def new_run_dir(name: str) -> str:
    """Return a new, unique path. The directory is not created, because a dry run calls this too."""
    return os.path.abspath(f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{name}-{secrets.token_hex(3)}")


@contextlib.contextmanager
def _sentences() -> Iterator[None]:
    """Turn our errors into one sentence and `SystemExit`, which TorchX lets pass. Any other exception becomes a traceback."""
    try:
        excepthook.prepare()
        yield
    except TorchftXError as e:
        raise excepthook.refused(str(e)) from None


def _python(image: str) -> str:
    """Return the job's interpreter: this process's own if there is no image, because the job then runs on this file system."""
    return "python" if image else sys.executable


def _here(path: str, image: str) -> str:
    """Return the path for the job's processes, which may have another current directory: absolute here, unchanged in an image."""
    return os.path.abspath(path) if path and not image else path
