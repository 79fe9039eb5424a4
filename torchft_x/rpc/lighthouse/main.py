"""``torchft_x lighthouse``: the lighthouse as a process, with torchft's flags and ours. Never loads torch."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from torchft_x import env, last_words, log_lines, net, tls
from torchft_x._version import __version__
from torchft_x.address_files import PAGE
from torchft_x.atomic_file import replace_file
from torchft_x.core.job import kept_groups
from torchft_x.core.job.outcome import DESERTED, JobConfig, JobOutcome
from torchft_x.core.lighthouse.machine import LighthouseConfig, SilenceLimits
from torchft_x.core.messages.job import GroupsChanged
from torchft_x.core.types import readable
from torchft_x.errors import AddressError, ConfigError, TorchftXError
from torchft_x.net import Address, parse_address
from torchft_x.observe.events import EventLog
from torchft_x.rpc.lighthouse.failover.journal import Journal, fingerprint, open_local_journal
from torchft_x.rpc.lighthouse.failover.standby import HeldLease, hold_lease
from torchft_x.rpc.lighthouse.page import start as page
from torchft_x.rpc.lighthouse.server import LighthouseShell
from torchft_x.rpc.transport import grpc_options, loop
from torchft_x.rpc.transport.token import check_token
from torchft_x.timing import TIMING

log = logging.getLogger("torchft_x.lighthouse")  # not __name__: that is __main__ under `python -m`

STANDS_BY = DESERTED
"""Exit code after the lease was lost or released; the process that follows is a standby."""
DEFECT = 70
"""Exit code EX_SOFTWARE, after which the lighthouse's supervisor restarts it."""
_MOST_OF_GROUPS = 1 << 22  # characters that are read: enough for thousands of groups with a sentence each


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the flags. Those up to --heartbeat_timeout_ms are torchft's, with its defaults."""
    p = argparse.ArgumentParser(
        prog="torchft_x lighthouse", description="Decides which replica groups train together.", allow_abbrev=False
    )
    p.add_argument("--min_replicas", type=int, required=True, metavar="N", help="groups a quorum needs")
    p.add_argument("--bind", default="[::]:29510", metavar="HOST:PORT", help="listen here (default %(default)s)")
    ms: dict[str, Any] = {"type": int, "metavar": "MS"}
    p.add_argument(
        "--join_timeout_ms", default=60000, help="wait for groups that haven't asked (default %(default)s)", **ms
    )
    p.add_argument("--quorum_tick_ms", default=100, help="look at the clock (default %(default)s)", **ms)
    p.add_argument(
        "--heartbeat_timeout_ms",
        help="silence of any kind that means death (default: 5000 for a group without a supervisor, 1500 for a lost host "
        "or a stopped process, 10000 or more for one that runs but is silent)",
        **ms,
    )
    p.add_argument("--token_file", metavar="PATH", help="file with the token every caller needs")
    p.add_argument("--advertise_host", metavar="HOST", help="name or address others reach this host by")
    p.add_argument("--address_file", metavar="PATH", help="write http://HOST:PORT here when serving")
    p.add_argument("--state_file", metavar="PATH", help="what the next lighthouse on this host must know is kept here")
    p.add_argument(
        "--lease_dir",
        metavar="DIR",
        help="one of several lighthouses that share this directory: one serves, the others stand by",
    )
    p.add_argument("--run_dir", metavar="DIR", help="directory of the run; events are written below it")
    p.add_argument("--job_groups", metavar="A,B,...", help="group ids of the job; end when they are done")
    p.add_argument("--job_min_replicas", type=int, default=1, metavar="N", help="groups that must be able to finish")
    p.add_argument(
        "--http_bind",
        metavar="HOST:PORT",
        help="the page, /status.json and /metrics; off: none (default: this host's loopback, the lighthouse's port + 10, or any)",
    )
    p.add_argument(
        "--groups_file",
        metavar="PATH",
        help="which groups the job has, said at any time by whoever keeps its supervisors running; unless a scheduler does "
        "that and says within how long (--replaced_within), they count as lost only if the file says so",
    )
    p.add_argument(
        "--replaced_within", type=float, metavar="SECONDS", help="longest time for a scheduler to (re)start a process"
    )
    p.add_argument("--last_words", metavar="PATH", help="write how the job has ended here")
    p.add_argument("--attempt", type=int, default=0, metavar="N", help="number of this start, from its supervisor")
    p.add_argument("--lease_owner", metavar="NAME", help="name in the lease, one for all these starts")
    p.add_argument("-V", "--version", action="version", version=f"torchft_x {__version__}")
    return p


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The checked command line, and what follows from it."""

    args: argparse.Namespace
    lighthouse: LighthouseConfig
    bind: Address
    token: str | None
    roster: JobConfig | None
    http_bind: str | None
    """Where the page is to listen, by --http_bind or the environment."""


def read_settings(args: argparse.Namespace) -> Settings:
    """Check the command line. Raises `ConfigError` naming the flag."""
    for name in ("join_timeout_ms", "quorum_tick_ms", "heartbeat_timeout_ms"):
        if getattr(args, name) is not None and getattr(args, name) <= 0:
            raise ConfigError(f"--{name} is {getattr(args, name)}, it must be a positive number of milliseconds.")
    if args.token_file is not None:
        token = check_token(env.read_token_file(args.token_file, f"--token_file {args.token_file}"))
    else:
        token = check_token(env.read_token())
    tls.use_token(token)
    roster = None
    replaced_within = args.replaced_within
    if args.job_groups is not None:
        groups = tuple(g.strip() for g in args.job_groups.split(",") if g.strip())
        roster = JobConfig(
            groups=groups,
            min_replicas=args.job_min_replicas,
            kept=args.groups_file is not None and replaced_within is None,
            several=args.lease_dir is not None,
        )
        if replaced_within is not None:
            roster = replace(roster, gone_grace=replaced_within, arrive_timeout=replaced_within)
    bind = parse_address(args.bind, what="--bind")
    if args.lease_dir is not None and args.state_file is not None:
        raise ConfigError(
            "--state_file and --lease_dir: one of several lighthouses writes into the directory; give one."
        )
    if args.lease_dir is not None and bind.port == 0:
        raise ConfigError(
            "--lease_dir and port 0: the address of one of several is known before it serves; give a port."
        )
    return Settings(
        args=args,
        lighthouse=LighthouseConfig(
            min_replicas=args.min_replicas,
            join_timeout=args.join_timeout_ms / 1000,
            tick=args.quorum_tick_ms / 1000,
            silence=SilenceLimits.all(args.heartbeat_timeout_ms and args.heartbeat_timeout_ms / 1000),
            # R8: the launcher's first lighthouse knows that nobody can be training yet, a later one that some may be.
            # One that a scheduler has started can't tell which it is.
            new_job=roster is not None and args.attempt == 0 and replaced_within is None,
            restarted=roster is not None and args.attempt > 0,
            boot_id=net.boot_id(),
        ),
        bind=bind,
        token=token,
        roster=roster,
        http_bind=page.checked(args.http_bind if args.http_bind is not None else env.read(env.HTTP_BIND)),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM, SIGINT or, with --job_groups, the end of the job.

    Returns the exit code; 2: bad input; 70: a defect of ours, as against a job that has failed (1).
    """
    args = make_parser().parse_args(argv)
    _log_to_stderr(env.read(env.LOG_LEVEL, "INFO") or "INFO")
    try:
        return _serve(read_settings(args))
    except TorchftXError as e:
        log_lines.print_line(f"torchft_x lighthouse: {e}", "error", role="lighthouse")
        return 2
    except Exception:
        log.exception("the lighthouse has failed")
        return DEFECT


def _serve(settings: Settings) -> int:
    args = settings.args
    ended: SimpleQueue[None] = SimpleQueue()  # no Event, which a signal's handler could wait for
    verdicts: list[int] = []
    shell: LighthouseShell | None = None  # a verdict may stand in the journal, and comes while it is made

    def on_verdict(verdict: int, sentence: str) -> None:
        verdicts.append(verdict)
        last_words.write(verdict, sentence, args.last_words)
        log.log(logging.WARNING if verdict else logging.INFO, "%s", sentence)
        events.emit("exit", code=verdict, reason=sentence, step=None if shell is None else shell.reached)
        ended.put(None)

    try:
        events = EventLog(args.run_dir, "lighthouse")
    except OSError as e:
        raise ConfigError(f"--run_dir {args.run_dir}: events can't be written there ({e.strerror}).") from None
    roster = JobOutcome(settings.roster) if settings.roster is not None else None
    config, lease = settings.lighthouse, None
    if args.lease_dir is None:
        journal = _open_journal(settings)
    else:
        held = _hold_lease(settings, ended)
        if isinstance(held, int):
            return held
        lease, journal, first = held
        config = replace(config, new_job=first and roster is not None, restarted=not first)
    shell = LighthouseShell(
        config,
        token=settings.token,
        roster=roster,
        events=events,
        on_verdict=on_verdict,
        journal=journal,
        lease=lease,
        changed=GroupsFile(args.groups_file).changed if args.groups_file is not None else lambda: None,
    )
    try:
        port = loop.call(shell.start(settings.bind), 10.0, "starting the lighthouse")
    except AddressError:
        if lease is not None:
            lease.end()  # another one may serve at once
        raise
    address = _address(settings, port)
    shell.recorder.job = _name(settings)
    shown = loop.call(page.start(shell, settings.http_bind, port, address), 10.0, "starting the page")
    where = f", page at {shown.url}" if shown.url else ""
    log.info("Lighthouse listening on %s%s, min_replicas=%d", address, where, settings.lighthouse.min_replicas)
    if shown.trouble:
        log.warning("%s", shown.trouble)
    if settings.token is None:
        log.warning("No token is set: whoever reaches the port can take part. Give --token_file to change that.")
    events.emit("start", address=address)
    code: int | None = None
    try:
        if args.address_file is not None and (lease is None or lease.holds()):  # else the next one has written its own
            _write_address(args.address_file, address)
        if args.run_dir is not None and shown.url:
            _write_address(os.path.join(args.run_dir, PAGE), shown.url)
        _on_signals(ended)
        ended.get()
        code = verdicts[0] if verdicts else None
    finally:
        loop.call(shown.close(), 5.0, "stopping the page")
        loop.call(shell.stop(flush=TIMING.lighthouse_flush), TIMING.lighthouse_flush + 5.0, "stopping the lighthouse")
        events.close()
        if lease is not None:
            lease.end(None if code == DESERTED else code)
        if journal is not None:
            journal.close()
    return code or 0


def _open_journal(settings: Settings) -> Journal | None:
    if settings.args.state_file is None:
        return None
    return open_local_journal(settings.args.state_file, boot_id=settings.lighthouse.boot_id, run=_run(settings))


def _run(settings: Settings) -> bytes:
    """Return this job's fingerprint, by which a journal is matched to its job."""
    return fingerprint(settings.token, env.read(env.TORCHX_JOB_ID))


def _name(settings: Settings) -> str:
    """Return the job's name for people: TorchX's, else that of the run directory, else ''."""
    app = (env.read(env.TORCHX_JOB_ID) or "").rpartition("/")[2]
    run_dir = settings.args.run_dir
    return app or ("" if run_dir is None else os.path.basename(os.path.abspath(run_dir)))


def _address(settings: Settings, port: int) -> str:
    return grpc_options.advertised(settings.bind, port, settings.args.advertise_host).url


def _hold_lease(settings: Settings, ended: SimpleQueue[None]) -> HeldLease | int:
    """Stand by, and return this lighthouse's lease; an exit code if the job is over or a signal ordered a stop."""

    def wait(seconds: float) -> bool:
        try:
            ended.get(timeout=seconds)
        except Empty:
            return False
        return True

    def on_lost(sentence: str) -> None:
        log.error("This lighthouse ends: %s. The next one stands by.", sentence)
        os._exit(STANDS_BY)  # queued messages must not be sent any more

    _on_signals(ended)
    return hold_lease(
        Path(settings.args.lease_dir),
        settings.args.lease_owner or secrets.token_hex(8),
        address=_address(settings, settings.bind.port),
        bind=settings.bind,
        boot_id=settings.lighthouse.boot_id,
        run=_run(settings),
        again=settings.args.attempt > 0,
        on_lost=on_lost,
        wait=wait,
    )


def _on_signals(ended: SimpleQueue[None]) -> None:
    """Make SIGTERM and SIGINT end the serving, on the main thread only. Elsewhere the caller handles signals."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.put(None))


def _write_address(path: str, address: str) -> None:
    try:
        replace_file(path, address + "\n")
    except OSError as e:
        raise ConfigError(f"--address_file {path}: it can't be written ({e.strerror}).") from None


class _Readable(logging.Formatter):
    """Formatter that names groups without the nonce of an attempt, which is in the event log."""

    def format(self, record: logging.LogRecord) -> str:
        return readable(super().format(record))


def _log_to_stderr(level: str) -> None:
    """Log to stderr, one line per record: time, level and text, or JSON if the environment asks for it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        log_lines.JsonFormatter(readable, role="lighthouse")
        if env.wants_json()
        else _Readable("%(asctime)s.%(msecs)03d %(levelname)s %(message)s", datefmt="%H:%M:%S")
    )
    logger = logging.getLogger("torchft_x")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(getattr(logging, level.upper(), logging.INFO))


class GroupsFile:
    """Reader of the file that names a job's groups. Used by one thread. Polling an unchanged file costs one system call.

    The process that keeps the job's supervisors running changes it at any time. It is as trustworthy as the token beside
    it: both can be written by all who may write into the run directory.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None  # inode, time and size of the file read last; (): it was missing

    def changed(self) -> GroupsChanged | None:
        """Return the file's content if it has changed, else None.

        A file that can't be used counts as unchanged, so the groups read last stay valid."""
        before = self._seen
        try:
            stat = os.stat(self._path)
            self._seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if self._seen == before:
                return None
            with open(self._path, encoding="utf-8") as f:
                return kept_groups.parse(f.read(_MOST_OF_GROUPS))
        except OSError as e:
            self._seen, why = (), str(e.strerror)
        except (UnicodeDecodeError, ConfigError) as e:
            why = str(e)
        if self._seen != before:
            log.warning("%s can't be used, the job's groups stay what they are: %s", self._path, why.rstrip("."))
        return None


if __name__ == "__main__":
    sys.exit(main())
