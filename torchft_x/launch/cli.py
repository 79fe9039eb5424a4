"""Command lines of a job's processes. Each parses its arguments into a configuration; errors are one sentence."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchft_x import env, last_words, log_lines
from torchft_x.arguments import Parser, option
from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch.job.parse import parse_counts
from torchft_x.launch.process.checkpoint_memory import MEMORY
from torchft_x.launch.process.restarts import RestartRules
from torchft_x.launch.supervisor.config import (
    SupervisorConfig,
    add_launcher_options,
    launcher_options,
    start_warm_parent,
)
from torchft_x.timing import LONGEST_WAIT, TIMING

if TYPE_CHECKING:
    from torchft_x.launch.supervisor.base import BaseSupervisor

# Seconds, for a job over several machines. A local one has shorter waits (`torchft_x.timing`).
_FIND_REMOTE = 300.0  # longest wait for the lighthouse, whose image may still be pulled
_KILL_WAIT = 30.0  # between Slurm's SIGTERM and SIGKILL: the default of KillWait


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="torchft_x supervise", description="Run one replica group and restart it when it dies.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--group", help="id of this group, stable over restarts")
    which.add_argument("--replica", type=int, help="instead, of a group over N nodes: node K %% N of group K // N")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes of this group, with --replica")
    parser.add_argument("--groups", type=int, required=True, help="number of groups of the job")
    parser.add_argument(
        "--workers", default="1", help="processes of this group, on all its nodes; or, with commas, of each group"
    )
    parser.add_argument(
        "--hang_timeout", type=float, default=env.read(env.HANG_TIMEOUT), metavar="SECONDS",
        help="end an attempt that takes no step for so long, whatever it does; by default what provably stands still "
        f"is ended, after about 20 s ({env.HANG_TIMEOUT})",
    )  # fmt: skip
    parser.add_argument(
        "--memory", type=float, default=env.read(env.MEMORY) or MEMORY, metavar="SHARE",
        help="part of this host's memory for copies of the state, from which the job goes on when all its workers were killed; "
        f"by default {MEMORY:g}; 0: none ({env.MEMORY})",
    )  # fmt: skip
    parser.add_argument(
        "--health", default="", metavar="COMMAND", help="don't use this host if this shell command fails"
    )
    parser.add_argument("--own_gpus", action="store_true", help="no other group uses the GPUs that this one sees")
    _add_common_options(parser)
    parser.usage = "%(prog)s (--group G | --replica K --nodes N) --groups G [option ...] -- SCRIPT|-m MODULE [ARG ...]"
    return parser


def _add_common_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max_restarts", type=int, default=10, help="restarts allowed within an hour")
    parser.add_argument("--run_dir", type=Path, help="directory shared by the job: address, token, events, logs")
    parser.epilog = f"The lighthouse is {env.LIGHTHOUSE}, else the one whose address is in the run directory."
    add_launcher_options(parser)


def supervise(argv: list[str]) -> int:
    """Run ``torchft_x supervise`` and return the exit code. Raise `ConfigError`."""
    # argparse treats a second "--", which belongs to the script, differently in different Python versions.
    cut = argv.index("--") if "--" in argv else len(argv)
    args = _parser().parse_args(argv[:cut])
    local = env.is_local_job()
    group, node = _group_and_node(args)
    config = SupervisorConfig(
        group=group,
        groups=args.groups,
        workers=_workers(args, group),
        node=node,
        nodes=args.nodes,
        command=_command(argv[cut + 1 :]),
        rules=RestartRules(max_restarts=args.max_restarts),
        patience=TIMING.nodes_wait if local else LONGEST_WAIT,
        own_gpus=args.own_gpus,
        notice=_notice(local),
        memory=args.memory,
        hang_timeout=args.hang_timeout,
        health=args.health,
        **_common(args),
    )
    if config.lighthouse and args.run_dir and group == "0" and node == 0:  # the job's own lighthouse would print it
        log_lines.write(log_lines.line(f"Run directory: {args.run_dir}"), sys.stdout)
    warm = start_warm_parent(config)
    from torchft_x.launch.supervisor.group import Supervisor  # imported while the warm parent imports
    from torchft_x.launch.supervisor.locate import connector

    connect = connector(group, node, args.nodes)
    return _keep_running(lambda: Supervisor(config, connect, warm), config.name, role="supervisor", group=group)


def _keep_running(make: Callable[[], BaseSupervisor], name: str, **labels: str) -> int:
    """Run a supervisor and return its exit code. A user's mistake is logged as one sentence; the code is then 2."""
    try:
        return make().run()
    except TorchftXError as e:
        log_lines.print_line(f"torchft_x: {name}: {e}", "error", **labels)
        return 2


def _command(words: Sequence[str]) -> tuple[str, ...]:
    """Return the script and its arguments. Replace ``-m MODULE`` by the module's file; raise `ConfigError` if it is missing."""
    if list(words[:1]) != ["-m"]:
        return tuple(words)
    name = words[1] if len(words) > 1 else ""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.origin:
        raise ConfigError(f"-m {name}: there is no such module for {sys.executable}.")
    return (spec.origin, *words[2:])


def _notice(local: bool) -> float:
    """Return the seconds between SIGTERM and SIGKILL: the variable's, which pods set, else KillWait on Slurm, else TorchX's."""
    usual = _KILL_WAIT if env.read(env.SLURM_JOB_ID) and not local else TIMING.notice
    return env.read_seconds(env.NOTICE, usual) or usual


def _group_and_node(args: argparse.Namespace) -> tuple[str, int]:
    """Return the group id and the node's index in the group. Raise `ConfigError`."""
    if args.nodes < 1:
        raise ConfigError(f"--nodes is {args.nodes}, a group has at least one.")
    if args.replica is None:
        if args.nodes > 1:
            raise ConfigError("--group names a group on one node; give --replica K with --nodes.")
        return str(args.group), 0
    if not 0 <= args.replica < args.groups * args.nodes:
        raise ConfigError(
            f"--replica is {args.replica}, but {args.groups} groups of {args.nodes} nodes are replicas 0 to "
            f"{args.groups * args.nodes - 1}."
        )
    return str(args.replica // args.nodes), args.replica % args.nodes


def _workers(args: argparse.Namespace, group: str) -> int:
    """Return the number of this group's workers. Raise `ConfigError`."""
    if "," not in args.workers:
        try:
            return int(args.workers)
        except ValueError:
            raise ConfigError(f"--workers {args.workers!r} is no number.") from None
    each = parse_counts(args.workers, what="--workers")
    if not (len(each) == args.groups and group.isdecimal() and int(group) < args.groups):
        raise ConfigError(
            f"--workers names {len(each)} groups, and this is group {group} of {args.groups}; give a number for each."
        )
    return each[int(group)]


def accompany(argv: list[str]) -> int:
    """Run ``torchft_x accompany`` and return the exit code. Raise `ConfigError`."""
    from torchft_x.launch.supervisor.locate import connector
    from torchft_x.launch.supervisor.sidecar import Sidecar, SidecarConfig

    parser = Parser(
        prog="torchft_x accompany", description="Run a program beside the groups, as long as the job lives."
    )
    parser.add_argument("--name", required=True, help="of the sidecar, its own within the job")
    _add_common_options(parser)
    parser.usage = "%(prog)s --name NAME [option ...] -- PROGRAM [ARG ...]"
    cut = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:cut])
    rules = RestartRules(max_restarts=args.max_restarts, steps=False)
    config = SidecarConfig(sidecar=args.name, command=tuple(argv[cut + 1 :]), rules=rules, **_common(args))
    connect, labels = connector("", sidecar=args.name), {"role": "sidecar", "sidecar": args.name}
    return _keep_running(lambda: Sidecar(config, connect), config.name, **labels)


def _common(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that all supervisors take from the common options and the environment."""
    local, given = env.is_local_job(), env.read(env.LIGHTHOUSE)
    find_timeout = (TIMING.find_given if given else TIMING.find_local) if local else _FIND_REMOTE
    fields = {"run_dir": args.run_dir, "lighthouse": given, "local": local}
    return {**fields, "launcher": launcher_options(args), "find_timeout": find_timeout}


def lighthouse(argv: list[str]) -> int:
    """Run ``torchft_x lighthouse`` and return the exit code. With ``--run_dir``, its address and token are written there."""
    from torchft_x.launch.job.run_claim import RunClaim, pause
    from torchft_x.launch.supervisor.lighthouse import LighthouseSupervisor, complete

    parser = Parser(prog="torchft_x lighthouse", add_help=False, allow_abbrev=False)
    add_launcher_options(parser)
    args, argv = parser.parse_known_args(argv)
    launcher, claim = launcher_options(args), None
    local = launcher.launcher_pid is not None or env.is_local_job()
    run_dir = option(argv, "--run_dir")
    try:
        if run_dir is not None:
            folder = Path(run_dir).absolute()
            log_lines.write(log_lines.line(f"Run directory: {folder}", role="lighthouse"), sys.stdout)
            if "--job_groups" in argv:  # a stand-alone one belongs to no job
                claim = RunClaim(folder, env.everything(), local=local)
                claim.take(pause)
            argv = complete(argv, folder, local=local)
        return LighthouseSupervisor(argv, launcher, claim).run()
    except TorchftXError as e:
        log_lines.print_line(f"torchft_x lighthouse: {e}", "error", role="lighthouse")
        last_words.write(2, str(e), launcher.last_words)
        return launcher.no_restart_code or 2


def dumps(argv: list[str]) -> int:
    """Run ``torchft_x dumps`` and return the exit code, 1 if there are none."""
    from torchft_x.observe.dumps import all_folders, describe, examine, headline, number, read_folder

    parser = Parser(
        prog="torchft_x dumps", description="Say what was collected when groups died or hung: docs/operate.md."
    )
    parser.add_argument("run_dir", type=Path, help="of the run")
    parser.add_argument("number", type=int, nargs="?", help="of the dump to describe; default: the newest")
    args = parser.parse_args(argv)
    folders = all_folders(args.run_dir)
    chosen = [f for f in folders if args.number in (None, number(f))][-1:]
    if not chosen:
        what = "nothing was collected" if args.number is None else f"there is no dump {args.number}"
        print(f"torchft_x dumps: {what} in {args.run_dir / 'dumps'}.", file=sys.stderr)
        return 1
    for folder in folders:
        print(f"{folder.name}: {headline(examine(read_folder(folder)))}")
    print()
    print("\n".join(describe(read_folder(chosen[0]))))
    return 0


def doctor(argv: list[str]) -> int:
    """Run ``torchft_x doctor`` and return the exit code, 1 if there is a problem."""
    from torchft_x.launch.doctor import CHECKS
    from torchft_x.launch.doctor import runner as d

    parser = Parser(
        prog="torchft_x doctor", description="Look at what a job needs on this machine, and say what to do."
    )
    parser.add_argument("--lighthouse", metavar="ADDRESS", help=f"also look at this one; default {env.LIGHTHOUSE}")
    parser.add_argument("--run_dir", type=Path, metavar="DIR", help="of a run, or where one shall write")
    parser.add_argument("--torch", action="store_true", help="also import torch, which takes seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    try:
        folder = Path.cwd()
    except OSError:  # the current directory was removed
        folder = Path("/")
    run_dir = env.read(env.RUN_DIR)  # set inside a job
    case = d.Case(
        environ=env.everything(),
        folder=folder,
        home=Path(os.path.expanduser("~")),
        lighthouse=args.lighthouse,
        run_dir=args.run_dir or (Path(run_dir) if run_dir else None),
        torch=args.torch,
    )
    try:
        findings = d.examine(case, CHECKS)
        print(json.dumps(d.as_json(findings)) if args.json else "\n".join(d.lines(findings)), flush=True)
    except KeyboardInterrupt:  # Ctrl-C needs no message
        return 130
    return 1 if any(f.level == "problem" for _, f in findings) else 0
