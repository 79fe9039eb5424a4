"""Batch script of a role. Each task of its job array is a part: a replica group, the lighthouse, or a sidecar.

The same text is used to submit all parts of the role, one of them anew, or an additional one. `submission` adds the values
of one submission, such as the array's range and the ticket. A part's job id is always ``A_T``, with T as the part's number.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchft_x.arguments import option
from torchft_x.errors import ConfigError
from torchft_x.launch.job.health import UNHEALTHY
from torchft_x.launch.slurm.rules.queue import comment
from torchft_x.launch.slurm.store import WATCHER, folder

REPLICA = "@torchft_x_replica@"
"""Placeholder for the replica's number in arguments and in values of variables."""
GROUPS = "@torchft_x_groups@"
"""Placeholder for the job's number of groups."""
FENCE = "@torchft_x_fence@"
"""Placeholder for the part's fence file and the name of its start."""
_VARIABLES = {GROUPS: '"$groups"', FENCE: '"$fence" "$fence_name"'}
_HEAD = "#!/bin/bash\n"
_GROUPS_WITH_WATCHER = 4  # number of first groups beside each of which a lighthouse and a watcher run
_WATCHER_STARTS = 10  # seconds between the start of a group and of the watcher beside it, except for a job's first one
_IN_PLACE = 3  # number of times that the batch script restarts a part whose first process was killed
_LAST_WORDS = 50  # fifths of a second for which the lighthouse may still end the job after a group has failed
_EXCLUDE = re.compile(r'^#SBATCH --exclude="?([^"\n]+)"?\n', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class RoleScript:
    """Content of one role's batch script."""

    role: str
    kind: str
    """lighthouse, trainer or sidecar; '' for a program that isn't ours."""
    command: tuple[str, ...]
    """Command of each node, possibly with `REPLICA`: node k of a part of N nodes is replica ``number * N + k``."""
    env: Mapping[str, str]
    run_dir: str
    folder: str
    """Current directory of the job."""
    nodes: int = 1
    cpus: int = 0
    """CPUs per node; 0 for Slurm's default."""
    memory: int = -1
    """MB per node; 0 for all of its memory, -1 for Slurm's default."""
    gpus: int = 0
    """GPUs per node; 0 to request none."""
    options: tuple[str, ...] = ()
    """Options for sbatch, such as ``--partition=gpu``."""
    srun_options: tuple[str, ...] = ()
    python: str = "python"
    """Interpreter for our own commands in the batch script."""
    groups: int = 0
    """Number of the job's groups at its submission."""
    lighthouse: tuple[str, ...] = ()
    """Command of the job's own lighthouse, for a trainer's script, which runs it beside the first groups; () if none."""
    lighthouse_env: Mapping[str, str] = field(default_factory=dict)


def render(spec: RoleScript) -> str:
    """Return the script without the array's range, name and comment. Raise `ConfigError` for values that it can't contain."""
    check_values(spec)
    logs = f"{folder(spec.run_dir)}/logs"
    resources = [f"--nodes={spec.nodes}", f"--ntasks={spec.nodes}", "--ntasks-per-node=1"]
    resources += [f"--cpus-per-task={spec.cpus}"] if spec.cpus > 0 else []
    resources += [f"--mem={spec.memory}{'M' if spec.memory else ''}"] if spec.memory >= 0 else []
    resources += [f"--gpus-per-node={spec.gpus}"] if spec.gpus > 0 else []
    files = ["--open-mode=append", f"--output={logs}/{spec.role}-%a.%A_%a.slurm.log", f"--chdir={spec.folder}"]
    options = [*resources, "--requeue", "--export=ALL", *files, *spec.options]
    common = [f"export {name}={shlex.quote(value)}" for name, value in spec.env.items() if REPLICA not in value]
    own = [f"export {name}={_quote(value)}" for name, value in spec.env.items() if REPLICA in value]
    step = ["--kill-on-bad-exit=1", "--wait=0", "--export=ALL", "--open-mode=append", *spec.srun_options]
    log = f'--output={shlex.quote(logs)}"/{spec.role}-$number-%t.$me-r$attempt.log"'
    if_healthy = "&& ! unhealthy " if _unhealthy(spec) else ""
    not_shared = (
        f"torchft_x: the run directory {spec.run_dir} is not on this node: it must lie on a file system that all nodes share; "
        "choose another --run_dir."
    )
    return "\n".join(
        [
            _HEAD.rstrip(),
            *(f"#SBATCH {_directive(option)}" for option in options),
            f"# Each task of the array is one {spec.role} of a job of torchft_x. Made by `torchx run -s slurm_ft`: docs/slurm.md.",
            "set -u",
            "me=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}  # of one task SLURM_JOB_ID is the id of the whole array",
            "export number=$SLURM_ARRAY_TASK_ID attempt=${SLURM_RESTART_COUNT:-0}",
            f"export groups={spec.groups}",
            'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"  # since Slurm 22.05 srun does not take it from the job',
            *common,
            f"if [ ! -d {shlex.quote(spec.run_dir)}/slurm ]; then",
            f"  echo {shlex.quote(not_shared)} >&2; exit 2",
            "fi",
            f'echo "launching {spec.role} $number (attempt $attempt) on $SLURM_JOB_NODELIST, job $me, $(date -Is)"',
            "read -r -d '' task <<'TORCHFT_X_TASK'",
            f"replica=$((number * {spec.nodes} + SLURM_PROCID))",
            *own,
            f"exec {' '.join(map(_quote, spec.command))}",
            "TORCHFT_X_TASK",
            "told=",
            *_again(spec),
            *_unhealthy(spec),
            *_fence(spec),
            *_watch(spec),
            *_lighthouse(spec),
            "trap told=1 TERM  # the step is told by Slurm, and ends in good order",
            "trap again USR1",
            "trap 'told=1; kill -KILL \"$step\"' USR2  # one of its nodes is lost, and srun would wait for it",
            "starts=0",
            "while :; do",
            f'  srun {" ".join(map(shlex.quote, step))} {log} bash -c "$task" &',
            "  step=$!",
            '  while wait "$step"; code=$?; [ "$code" -gt 128 ] && kill -0 "$step" 2>/dev/null; do :; done',
            f'  [ -z "$told" ] {if_healthy}&& [ "$code" -gt 128 ] && [ "$code" != 143 ] && [ $((starts += 1)) -le {_IN_PLACE} ] || break',
            f'  echo "{spec.role} $number: its first process was killed (code $code); it is started again here, $(date -Is)"',
            "done",
            *([f'[ -n "$told" ] || ! unhealthy || {_submit_again(spec)} unhealthy || code=1'] if if_healthy else []),
            *_end_lighthouse(spec),
            *(['[ -z "$watch" ] || kill "$watch" 2>/dev/null'] if _watch(spec) else []),
            f'echo "{spec.role} $number (attempt $attempt) has ended with $code, $(date -Is)"',
            'exit "$code"',
            "",
        ]
    )


def _fence(spec: RoleScript) -> list[str]:
    """Return the lines that write the name of the newest start into a file, by which an earlier one that still runs ends itself."""
    if spec.kind not in ("trainer", "sidecar"):
        return []
    file = f'{shlex.quote(spec.run_dir)}"/slurm/newest-{spec.role}-$number"'
    return [
        f'export fence={file} fence_name="$me-r$attempt"',
        'echo "$fence_name" > "$fence.$me" && mv "$fence.$me" "$fence"',
    ]


def _again(spec: RoleScript) -> list[str]:
    """Return the function ``again``, which submits the part as a new job ahead of its time limit: a requeued one would wait."""
    said = next((option.partition("@")[2] for option in spec.options if option.startswith("--signal=")), "")
    ahead = said if said.isdecimal() else "60"
    return [
        'again() { echo "$me: Slurm\'s time is nearly up; it is queued again"; '
        f'{_submit_again(spec)} {ahead} || scontrol requeue "$me"; }}'
    ]


def _submit_again(spec: RoleScript) -> str:
    """Return the command that submits the part anew, without its last argument."""
    words = [spec.python, "-m", "torchft_x", "slurm-again", spec.run_dir, spec.role]
    return f'{" ".join(map(shlex.quote, words))} "$number" "$me"'


def _unhealthy(spec: RoleScript) -> list[str]:
    """Return the function ``unhealthy``: whether the health command has failed on a node of this start. None without a command."""
    if option(list(spec.command), "--health") is None:
        return []
    return [f'unhealthy() {{ grep -qs "^$fence_name " {shlex.quote(str(folder(spec.run_dir) / UNHEALTHY))}/*; }}']


def _watch(spec: RoleScript) -> list[str]:
    """Return the lines that start a watcher beside each of the first groups. One of them asks Slurm, the others stand by."""
    if spec.kind not in ("lighthouse", "trainer"):
        return []
    words = " ".join(map(shlex.quote, [spec.python, "-m", "torchft_x", "slurm-watch", spec.run_dir]))
    # A delay keeps the watcher's start off the first seconds of a restarted group. The job's first watcher starts at once,
    # because it writes down who was heard, for `torchx status`.
    first = f'[ "$number" = 0 ] && [ ! -e {shlex.quote(spec.run_dir)}/slurm/{WATCHER} ]'
    start = f"{{ {first} || {_sleep(_WATCHER_STARTS)}; exec {words}; }}"
    return ["watch=", f'[ "$number" -ge {_GROUPS_WITH_WATCHER} ] || {{ {start} & watch=$!; }}']


def _lighthouse(spec: RoleScript) -> list[str]:
    """Return the lines for a lighthouse beside each of the first groups, all but one on standby (docs/operate.md)."""
    if not spec.lighthouse:
        return []
    log = f'{shlex.quote(f"{folder(spec.run_dir)}/logs")}"/lighthouse-$number-0.$me-r$attempt.log"'
    values = [f"export {name}={shlex.quote(value)}" for name, value in spec.lighthouse_env.items()]
    return [
        "lighthouse=",
        f'if [ "$number" -lt {_GROUPS_WITH_WATCHER} ]; then (',
        *(f"  {line}" for line in values),
        f'  exec {" ".join(map(shlex.quote, spec.lighthouse))} --attempt "$attempt" >> {log} 2>&1',
        ") & lighthouse=$!; fi",
    ]


def _end_lighthouse(spec: RoleScript) -> list[str]:
    """Return the lines that end the lighthouse with a failed group after `_LAST_WORDS`, and else at the job's end."""
    if not spec.lighthouse:
        return []
    end = " ".join(map(shlex.quote, [spec.python, "-m", "torchft_x", "slurm-end", spec.run_dir]))
    patient = f'{{ [ "$code" = 0 ] || [ $((waited += 1)) -lt {_LAST_WORDS} ]; }}'
    return [
        'if [ -n "$lighthouse" ]; then',
        "  waited=0",
        f'  while [ -z "$told" ] && kill -0 "$lighthouse" 2>/dev/null && {patient}; do {_sleep(0.2)}; done',
        '  kill -TERM "$lighthouse" 2>/dev/null; wait "$lighthouse"',
        f'  if [ -z "$told" ] || grep -qs \'"cancelled": true\' {shlex.quote(spec.run_dir)}/slurm/manifest.json; then',
        f'    {end} "$me"',
        "  fi",
        "fi",
    ]


def _sleep(seconds: float) -> str:
    """Return a command that waits without a process that could be left behind."""
    return f"read -rt {seconds:g} <> <(:)"


def submission(
    script: str,
    *,
    app: str,
    role: str,
    ticket: str,
    run_dir: str,
    numbers: Sequence[int],
    limit: int = 0,
    after: Sequence[str] = (),
    said: str = "",
    groups: int = 0,
    exclude: Sequence[str] = (),
) -> str:
    """Return the script of a role for the parts with these numbers. Raise `ConfigError` if the script was changed.

    `limit` is the largest number of parts that may run at once, 0 for no limit. `after` has ids of jobs that must have
    started. `said` is the user's own comment. `groups` is the job's present number of groups, 0 for that in the script.
    `exclude` has names of nodes, in addition to those that the user has excluded.
    """
    if not script.startswith(_HEAD):
        raise ConfigError("the batch script was changed: it does not begin with #!/bin/bash.")
    text = f"{comment(app, ticket, run_dir)} {said}".rstrip()
    lines = [f"--job-name={app}-{role}", f"--comment={text}", f"--array={array_range(numbers, limit)}"]
    lines += ["--dependency=" + ",".join(f"after:{job}" for job in after)] if after else []
    if groups:
        script = re.sub(r"^export groups=\d+$", f"export groups={groups}", script, count=1, flags=re.MULTILINE)
    script = script.removeprefix(_HEAD)
    if exclude:
        lines.append(f"--exclude={','.join([*excluded(script), *exclude])}")
        script = _EXCLUDE.sub("", script, count=1)  # sbatch takes only the last of two
    return _HEAD + "".join(f"#SBATCH {_directive(line)}\n" for line in lines) + script


def excluded(script: str) -> list[str]:
    """Return the nodes that the user has excluded in the script, in Slurm's format (``n[1-3]``)."""
    found = _EXCLUDE.search(script)
    return [found[1]] if found else []


def array_range(numbers: Sequence[int], limit: int = 0) -> str:
    """Return the numbers as sbatch's ``--array`` takes them, such as ``0-3,7`` or ``0-3%2``."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"{text}%{limit}" if limit > 0 else text


def check_values(spec: RoleScript) -> None:
    """Raise `ConfigError` for variables, paths or arguments that a batch script can't contain."""
    for name, value in spec.env.items():
        if not name.isidentifier() or not name.isascii():
            raise ConfigError(f"--env {name}: a shell takes no variable of that name.")
        if "\0" in value:
            raise ConfigError(f"--env {name}: the value holds a NUL, which no process can be given.")
    for what, path in (("run directory", spec.run_dir), ("current directory", spec.folder)):
        if any(c in path for c in "\n\r%\\") or any(c.isspace() for c in path):
            raise ConfigError(
                f"the {what} {path!r} holds a space, a line break, a % or a \\, which Slurm takes otherwise."
            )
    if any("\nTORCHFT_X_TASK\n" in f"\n{word}\n" for word in (*spec.command, *spec.env.values())):
        raise ConfigError("a line of an argument is TORCHFT_X_TASK, which ends the task in the batch script.")


def _directive(option: str) -> str:
    """Return the option for an ``#SBATCH`` line. sbatch strips quotes, and takes a # within them literally."""
    if "\n" in option or "\r" in option:
        raise ConfigError(f"the option {option!r} has a line break, which ends it in a batch script.")
    if not any(c.isspace() or c in "\"'#\\" for c in option):
        return option
    name, equals, value = option.partition("=")
    if '"' in value or "\\" in value:
        raise ConfigError(f"the option {name} holds a quotation mark or a \\, which sbatch takes otherwise.")
    return f'{name}{equals}"{value}"'


def _quote(text: str) -> str:
    """Return the text quoted for the shell, with variables of the script in place of the placeholders."""
    if text in _VARIABLES:
        return _VARIABLES[text]
    return '"$replica"'.join(shlex.quote(part) if part else "" for part in text.split(REPLICA)) or "''"
