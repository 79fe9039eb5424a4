"""Builds batch scripts from a TorchX app, one for each role. It reads and writes nothing and asks nobody: a dry run ends here."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchx.specs import AppDef, Role, macros

from torchft_x import env
from torchft_x.arguments import set_option
from torchft_x.errors import ConfigError
from torchft_x.launch.schedulers.role import FtRole
from torchft_x.launch.slurm import options, script, store
from torchft_x.launch.slurm.rules.manifest import Manifest, Part
from torchft_x.launch.slurm.script import FENCE, GROUPS, REPLICA, RoleScript

_RETRIES = 10  # restarts of an app without trainers, whose component gives no number


@dataclass(frozen=True, kw_only=True)
class RoleRequest:
    """Request for one role: its batch script and its parts."""

    spec: RoleScript
    text: str
    """Batch script, without the values that `script.submission` adds."""
    arrays: tuple[list[int], ...]
    """Numbers of the parts, a trainer's groups or another role's replicas, by array. Groups of one size share an array."""

    @property
    def parts(self) -> int:
        return sum(map(len, self.arrays))


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request for a whole job, with its roles in the order of their submission."""

    manifest: Manifest
    """Manifest of the job, of which no part is submitted."""
    roles: tuple[RoleRequest, ...]
    cfg: Mapping[str, Any]
    """Options of ``-cfg``."""

    def __str__(self) -> str:
        """Return the text that ``torchx run --dryrun`` prints: all submissions, with placeholders for ids."""
        shown = []
        for role in self.roles:
            after = ["TRAINER_0"] if role.spec.kind == "sidecar" else []
            for numbers in role.arrays:
                shown.append(f"# --- sbatch --parsable < {role.spec.role}\n{self.text(role, numbers, 'TICKET', after)}")
        return "\n".join(shown)

    def options(self, role: RoleRequest) -> dict[str, Any]:
        """Return the options of `script.submission` for a role: the number of groups that may run, and the user's comment."""
        limit = int(self.cfg.get("array_limit") or 0) if role.spec.kind == "trainer" else 0
        return {"limit": limit, "said": str(self.cfg.get("comment") or "")}

    def text(self, role: RoleRequest, numbers: Sequence[int], ticket: str, after: Sequence[str] = ()) -> str:
        """Return the batch script that submits these parts of a role, after the jobs of `after` have begun."""
        return script.submission(
            role.text,
            app=self.manifest.app,
            role=role.spec.role,
            ticket=ticket,
            run_dir=self.manifest.run_dir,
            numbers=numbers,
            after=after,
            **self.options(role),
        )


def build(app: AppDef, cfg: Mapping[str, Any], *, app_id: str, run_dir: str) -> Request:
    """Return the request for an app with the options of ``-cfg``. Raise `ConfigError` if they can't be used on Slurm."""
    ours = [role for role in app.roles if isinstance(role, FtRole)]
    facts = next((role.ft for role in ours if role.ft.kind == "trainer"), None)
    options.check(cfg, facts.groups if facts else 1)
    own = next((r for r in ours if r.ft.kind == "lighthouse"), None) if facts is not None else None
    submitted = [role for role in app.roles if role is not own]  # our lighthouses run beside the groups, in their jobs
    roles = [_role(role, cfg, app, app_id=app_id, run_dir=run_dir, lighthouse=own) for role in submitted]
    roles.sort(key=lambda r: r.spec.kind != "trainer")
    token_file = next((role.env[env.TOKEN_FILE] for role in app.roles if env.TOKEN_FILE in role.env), "")
    manifest = Manifest(
        app=app_id,
        run_dir=run_dir,
        token_file=token_file or os.path.join(run_dir, "token"),
        retries=facts.max_restarts if facts else _RETRIES,
        start_deadline=float(cfg.get("start_deadline") or Manifest.start_deadline),
        min_replicas=facts.min_replicas if facts else 1,
        own_lighthouse=own is not None,
        parts=tuple(
            Part(
                role=r.spec.role,
                kind=r.spec.kind,
                number=n,
                script=str(store.script(run_dir, r.spec.role)),
                nodes=r.spec.nodes,
            )
            for r in roles
            for n in range(r.parts)
        ),
    )
    return Request(manifest=manifest, roles=tuple(roles), cfg=cfg)


def _role(
    role: Role, cfg: Mapping[str, Any], app: AppDef, *, app_id: str, run_dir: str, lighthouse: FtRole | None
) -> RoleRequest:
    facts = role.ft if isinstance(role, FtRole) else None
    kind = facts.kind if facts else ""
    _check(role, app, cfg, ours=facts is not None)
    folder = os.getcwd()
    values = macros.Values(img_root=folder, app_id=app_id, replica_id=REPLICA, rank0_env="SLURMD_NODENAME")
    made = values.apply(role)
    nodes = facts.nodes if facts and kind == "trainer" else 1
    command = [made.entrypoint, *made.args]
    environ = dict(made.env)
    if facts:
        command, environ = _ours(kind, command, environ, run_dir)
    beside = None if lighthouse is None or kind != "trainer" else values.apply(lighthouse)
    beside_command, beside_env = ([], {}) if beside is None else _lighthouse(beside, app_id, run_dir)
    sbatch, srun = options.words(cfg, kind)
    if facts and role.image and not cfg.get("container-image"):
        srun += [f"--container-image={role.image}"]
    if role.mounts and facts:
        srun += ["--container-mounts=" + ",".join(map(_mount, role.mounts))]
    resource = role.resource
    spec = RoleScript(
        role=role.name,
        kind=kind,
        command=tuple(command),
        env=environ,
        run_dir=run_dir,
        folder=folder,
        nodes=nodes,
        cpus=int(resource.cpu),
        memory=0 if cfg.get("exclusive") and kind == "trainer" else int(resource.memMB) or -1,
        gpus=0 if cfg.get("gres") or cfg.get("gpus-per-node") else int(resource.gpu),  # Slurm's own options count
        options=tuple(sbatch),
        srun_options=tuple(srun),
        python=sys.executable,
        groups=facts.groups if facts else 0,
        lighthouse=tuple(beside_command),
        lighthouse_env=beside_env,
    )
    sizes = command[command.index("--workers") + 1].split(",") if kind == "trainer" else []
    parts = int(role.num_replicas) // nodes
    arrays: dict[str, list[int]] = {}
    for number in range(parts):
        arrays.setdefault(sizes[number] if len(sizes) == parts else "", []).append(number)
    return RoleRequest(spec=spec, text=script.render(spec), arrays=tuple(arrays.values()))


def _lighthouse(role: Role, app_id: str, run_dir: str) -> tuple[list[str], dict[str, str]]:
    """Return command and environment of the lighthouse beside a group, one of several that share a lease, on any port."""
    command, environ = _ours("lighthouse", [role.entrypoint, *role.args], dict(role.env), run_dir)
    set_option(command, "--lease_dir", str(store.lease_folder(run_dir, app_id)))
    return [*command, "--bind", "[::]:0", "--groups_file", str(store.groups_file(run_dir))], environ


def _ours(kind: str, command: list[str], environ: dict[str, str], run_dir: str) -> tuple[list[str], dict[str, str]]:
    """Return command and environment of our own role, whose processes the watcher and the batch script restart."""
    command = list(command)
    environ.pop(env.LIGHTHOUSE_AT, None)  # the lighthouse's address is in the run directory, which all nodes share
    if env.RUN_DIR in environ:
        environ[env.RUN_DIR] = run_dir
    if kind == "trainer":
        set_option(command, "--no_restart_code", "1")  # a group that is ended from outside does not count as done
        set_option(command, "--groups", GROUPS)
    if kind in ("trainer", "sidecar"):
        set_option(command, "--fence", FENCE)
    return command, environ


def _check(role: Role, app: AppDef, cfg: Mapping[str, Any], *, ours: bool) -> None:
    """Raise `ConfigError` if a role can't run on Slurm, or would expose the token."""
    if env.TOKEN in role.env:
        raise ConfigError(
            f"{env.TOKEN} in --env would be printed by --dryrun and kept in a batch script; set it in the shell that submits "
            "the job (Slurm passes it on), or use --token_file."
        )
    if ours and role.mounts and not (role.image or cfg.get("container-image")):
        raise ConfigError(
            "Slurm mounts nothing without a container: leave --mounts out and name paths that the nodes share."
        )
    if not ours and sum(int(r.num_replicas) for r in app.roles) > 1:
        text = " ".join([role.entrypoint, *role.args, *role.env.values()])
        if "rank0_env" in text:
            raise ConfigError(
                f"the role {role.name} asks for the host of the first replica (${{rank0_env}}), and here every replica is a "
                "job of its own; use -s slurm, or a component of torchft_x."
            )
    if not role.name.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"the role {role.name!r}: use letters, digits, - and _ in the names of roles.")


def _mount(mount: Any) -> str:
    """Return a mount in pyxis' format, ``SRC:DST[:ro]``. Raise `ConfigError` unless it is a bind mount."""
    source, target = getattr(mount, "src_path", None), getattr(mount, "dst_path", None)
    if source is None or target is None:
        raise ConfigError("--mounts: on Slurm only type=bind can be mounted.")
    return f"{source}:{target}" + (":ro" if getattr(mount, "read_only", False) else "")
