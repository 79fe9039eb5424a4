"""The batch script of a role: one task of a job array is one of its parts (a replica group, the lighthouse, an extra program).

The same text serves for all parts of the role at once, for one of them anew, and for one more: only the array's range and
the ticket are put in at each submission (`submission`). So a part is always ``A_T``, and T its number.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchft_x.core.slurm.queue import comment
from torchft_x.errors import ConfigError

REPLICA = "@torchft_x_replica@"
"""Stands for the replica's number in arguments and values."""
GROUPS = "@torchft_x_groups@"
"""Stands for the number of groups that the job has."""
_HEAD = "#!/bin/bash\n"
_HOSTS = 4  # first groups of a job, beside each of which a lighthouse and a watcher run
_WATCHER_STARTS = 10  # seconds after its group
_IN_PLACE = 3  # times that a part whose first process was killed is started again by its batch script
_LAST_WORDS = 50  # fifths of a second in which the lighthouse may still end the job, when a group has ended badly
_EXCLUDE = re.compile(r'^#SBATCH --exclude="?([^"\n]+)"?\n', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class RoleScript:
    """What one role runs."""

    role: str
    kind: str
    """lighthouse, trainer or sidecar; empty: a program that isn't ours."""
    command: tuple[str, ...]
    """May hold `REPLICA`: of a part over N nodes node k is replica ``number * N + k``."""
    env: Mapping[str, str]
    run_dir: str
    log_dir: str
    folder: str
    """Current directory of the job."""
    nodes: int = 1
    cpus: int = 0
    """Of one node; 0: Slurm's default, as for the two that follow."""
    memory: int = 0
    """MB, of one node."""
    whole_memory: bool = False
    """All of each node's, which is the group's alone."""
    gpus: int = 0
    """Of one node."""
    options: tuple[str, ...] = ()
    """Of sbatch: ``--partition=gpu``."""
    srun_options: tuple[str, ...] = ()
    python: str = "python"
    """That runs our own commands in the lighthouse's job."""
    groups: int = 0
    """Of the job, at the beginning."""
    lighthouse: tuple[str, ...] = ()
    """Of a trainer whose job has a lighthouse of its own: its command, which runs beside the first groups."""
    lighthouse_env: Mapping[str, str] = field(default_factory=dict)


def render(how: RoleScript) -> str:
    """Without the array's range, name and comment. Raises `ConfigError` for what no script can hold."""
    check_values(how)
    resources = [f"--nodes={how.nodes}", f"--ntasks={how.nodes}", "--ntasks-per-node=1"]
    resources += [f"--cpus-per-task={how.cpus}"] if how.cpus > 0 else []
    resources += ["--mem=0"] if how.whole_memory else [f"--mem={how.memory}M"] if how.memory > 0 else []
    resources += [f"--gpus-per-node={how.gpus}"] if how.gpus > 0 else []
    files = ["--open-mode=append", f"--output={how.log_dir}/{how.role}-%a.%A_%a.slurm.log", f"--chdir={how.folder}"]
    options = [*resources, "--requeue", "--export=ALL", *files, *how.options]
    common = [f"export {name}={shlex.quote(value)}" for name, value in how.env.items() if REPLICA not in value]
    own = [f"export {name}={_quote(value)}" for name, value in how.env.items() if REPLICA in value]
    step = ["--kill-on-bad-exit=1", "--wait=0", "--export=ALL", "--open-mode=append", *how.srun_options]
    log = f'--output={shlex.quote(how.log_dir)}"/{how.role}-$number-%t.$me-r$attempt.log"'
    return "\n".join(
        [
            _HEAD.rstrip(),
            *(f"#SBATCH {_directive(option)}" for option in options),
            f"# Each task of the array is one {how.role} of a job of torchft_x. Made by `torchx run -s slurm_ft`: docs/slurm.md.",
            "set -u",
            "me=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}  # of one task SLURM_JOB_ID is the id of the whole array",
            "export number=$SLURM_ARRAY_TASK_ID attempt=${SLURM_RESTART_COUNT:-0}",
            f"export groups={how.groups}",
            'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"  # since Slurm 22.05 srun does not take it from the job',
            *common,
            f"if [ ! -d {shlex.quote(how.run_dir)}/slurm ]; then",
            f"  echo {shlex.quote(_not_shared(how.run_dir))} >&2; exit 2",
            "fi",
            f'echo "launching {how.role} $number (attempt $attempt) on $SLURM_JOB_NODELIST, job $me, $(date -Is)"',
            "read -r -d '' task <<'TORCHFT_X_TASK'",
            f"replica=$((number * {how.nodes} + SLURM_PROCID))",
            *own,
            f"exec {' '.join(map(_quote, how.command))}",
            "TORCHFT_X_TASK",
            "told=",
            *_again(how),
            *_fence(how),
            *_watch(how),
            *_lighthouse(how),
            "trap told=1 TERM  # the step is told by Slurm, and ends in good order",
            "trap again USR1",
            "trap 'told=1; kill -KILL \"$step\"' USR2  # one of its nodes is lost, and srun would wait for it",
            "starts=0",
            "while :; do",
            f'  srun {" ".join(map(shlex.quote, step))} {log} bash -c "$task" &',
            "  step=$!",
            '  while wait "$step"; code=$?; [ "$code" -gt 128 ] && kill -0 "$step" 2>/dev/null; do :; done',
            f'  [ -z "$told" ] && [ "$code" -gt 128 ] && [ "$code" != 143 ] && [ $((starts += 1)) -le {_IN_PLACE} ] || break',
            f'  echo "{how.role} $number: its first process was killed (code $code); it is started again here, $(date -Is)"',
            "done",
            *_end_lighthouse(how),
            *(['[ -z "$watch" ] || kill "$watch" 2>/dev/null'] if _watch(how) else []),
            f'echo "{how.role} $number (attempt $attempt) has ended with $code, $(date -Is)"',
            'exit "$code"',
            "",
        ]
    )


def _fence(how: RoleScript) -> list[str]:
    """Whoever is started last writes its name down: what runs on behind a broken network ends when it reads that."""
    if how.kind not in ("trainer", "sidecar"):
        return []
    file = f'{shlex.quote(how.run_dir)}"/slurm/newest-{how.role}-$number"'
    return [
        f'export TORCHFT_X_FENCE_FILE={file} TORCHFT_X_FENCE="$me-r$attempt"',
        'echo "$TORCHFT_X_FENCE" > "$TORCHFT_X_FENCE_FILE.$me" && mv "$TORCHFT_X_FENCE_FILE.$me" "$TORCHFT_X_FENCE_FILE"',
    ]


def _again(how: RoleScript) -> list[str]:
    """A job of its own, which has no BeginTime: who was requeued waits for somebody to end it, and all may be queued again at
    the same moment."""
    said = next((option.partition("@")[2] for option in how.options if option.startswith("--signal=")), "")
    ahead = said if said.isdecimal() else "60"
    words = " ".join(map(shlex.quote, [how.python, "-m", "torchft_x", "slurm-again", how.run_dir, how.role]))
    return [
        'again() { echo "$me: Slurm\'s time is nearly up; it is queued again"; '
        f'{words} "$number" "$me" {ahead} || scontrol requeue "$me"; }}'
    ]


def _watch(how: RoleScript) -> list[str]:
    """Start a watcher beside each of the first groups. One of them asks Slurm; the others take over when it is lost."""
    if how.kind not in ("lighthouse", "trainer"):
        return []
    words = " ".join(map(shlex.quote, [how.python, "-m", "torchft_x", "slurm-watch", how.run_dir]))
    # A group that begins again has better things to do in its first seconds. `read` waits without a process.
    return ["watch=", f'[ "$number" -ge {_HOSTS} ] || {{ {{ {_sleep(_WATCHER_STARTS)}; exec {words}; }} & watch=$!; }}']


def _lighthouse(how: RoleScript) -> list[str]:
    """Start a lighthouse beside each of the first groups: one serves, the others stand by (docs/operate.md)."""
    if not how.lighthouse:
        return []
    log = f'{shlex.quote(how.log_dir)}"/lighthouse-$number-0.$me-r$attempt.log"'
    values = [f"export {name}={shlex.quote(value)}" for name, value in how.lighthouse_env.items()]
    return [
        "lighthouse=",
        f'if [ "$number" -lt {_HOSTS} ]; then (',
        *(f"  {line}" for line in [*values, "export TORCHFT_X_ATTEMPT=$attempt"]),
        f"  exec {' '.join(map(shlex.quote, how.lighthouse))} >> {log} 2>&1",
        ") & lighthouse=$!; fi",
    ]


def _end_lighthouse(how: RoleScript) -> list[str]:
    """End the lighthouse with its group, after the job's end if it can be: a group that has finished waits for the others.

    The time after any other end lets other groups that end now still be heard, and the lighthouse end the job.
    """
    if not how.lighthouse:
        return []
    end = " ".join(map(shlex.quote, [how.python, "-m", "torchft_x", "slurm-end", how.run_dir]))
    patient = f'{{ [ "$code" = 0 ] || [ $((waited += 1)) -lt {_LAST_WORDS} ]; }}'
    return [
        'if [ -n "$lighthouse" ]; then',
        "  waited=0",
        f'  while [ -z "$told" ] && kill -0 "$lighthouse" 2>/dev/null && {patient}; do {_sleep(0.2)}; done',
        '  kill -TERM "$lighthouse" 2>/dev/null; wait "$lighthouse"',
        f'  if [ -z "$told" ] || grep -qs \'"cancelled": true\' {shlex.quote(how.run_dir)}/slurm/manifest.json; then',
        f'    {end} "$me"',
        "  fi",
        "fi",
    ]


def _sleep(seconds: float) -> str:
    """Wait without a process that may stay behind."""
    return f"read -rt {seconds:g} <> <(:)"


def _not_shared(run_dir: str) -> str:
    return (
        f"torchft_x: the run directory {run_dir} is not on this node: it must lie on a file system that all nodes share; "
        "choose another --run_dir."
    )


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
    """The script of a role, for these of its parts. `after`: jobs that must have started. `said`: the user's own comment.
    `groups`: that the job has by now; 0: as many as at first. `exclude`: nodes that it shall not have, besides those that the
    user has excluded."""
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
        script = _EXCLUDE.sub("", script, count=1)  # of two the later one would count
    return _HEAD + "".join(f"#SBATCH {_directive(line)}\n" for line in lines) + script


def excluded(script: str) -> list[str]:
    """What its user has excluded, in Slurm's words (``n[1-3]``)."""
    found = _EXCLUDE.search(script)
    return [found[1]] if found else []


def array_range(numbers: Sequence[int], limit: int = 0) -> str:
    """``0-3,7`` or ``0-3%2``."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"{text}%{limit}" if limit > 0 else text


def check_values(how: RoleScript) -> None:
    """Raises `ConfigError`."""
    for name, value in how.env.items():
        if not name.isidentifier() or not name.isascii():
            raise ConfigError(f"--env {name}: a shell takes no variable of that name.")
        if "\0" in value:
            raise ConfigError(f"--env {name}: the value holds a NUL, which no process can be given.")
    for what, path in (("run directory", how.run_dir), ("current directory", how.folder)):
        if any(c in path for c in "\n\r%\\") or any(c.isspace() for c in path):
            raise ConfigError(
                f"the {what} {path!r} holds a space, a line break, a % or a \\, which Slurm takes otherwise."
            )
    if any("\nTORCHFT_X_TASK\n" in f"\n{word}\n" for word in (*how.command, *how.env.values())):
        raise ConfigError("a line of an argument is TORCHFT_X_TASK, which ends the task in the batch script.")


def _directive(option: str) -> str:
    """As sbatch reads it: it takes quotes off, and a # within them as it is."""
    if "\n" in option or "\r" in option:
        raise ConfigError(f"the option {option!r} has a line break, which ends it in a batch script.")
    if not any(c.isspace() or c in "\"'#\\" for c in option):
        return option
    name, equals, value = option.partition("=")
    if '"' in value or "\\" in value:
        raise ConfigError(f"the option {name} holds a quotation mark or a \\, which sbatch takes otherwise.")
    return f'{name}{equals}"{value}"'


def _quote(text: str) -> str:
    """For the shell, with the replica's number in the place of `REPLICA`."""
    if text == GROUPS:
        return '"$groups"'
    return '"$replica"'.join(shlex.quote(part) if part else "" for part in text.split(REPLICA)) or "''"
