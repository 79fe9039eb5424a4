"""The warm parent: a process that has imported what a worker imports, and forks workers. Run by file path:

    python -u warm_parent.py CONTROL SUPERVISOR SCRIPT [ARG...]

CONTROL is the descriptor of a socket to the supervisor (warm.py): one line of JSON each way. SCRIPT's text is looked
at for what it imports; it is run only in the workers. Its arguments are there for people who read ``ps``.

A life is a small tree, as with torchrun: an *agent*, the supervisor's own child, which serves the group's store and
is the parent of the workers. So that all of it dies with the supervisor and none of it with the warm parent, the
agent is forked by a child that ends at once, and is adopted by the supervisor (a sub-reaper).

A process may be forked only while it has one thread: the parent never makes a tensor operation, a channel, a store,
or a context on a device. It looks before each fork, and ends with its reason rather than fork unsoundly.
"""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # our own folder: its `parse` and `tree` are not what others mean

import contextlib
import gc
import importlib.machinery
import importlib.util
import json
import os
import socket
import sysconfig
import time
import types
import warnings
from typing import Any, NoReturn

from torchft_x import env
from torchft_x.launch import shim, warm_rules

_ADOPTED = 5.0  # seconds until the supervisor must have become the agent's parent
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel")  # open while a driver is in use


def preload(script: str) -> list[str]:
    """Import what workers will; the names that could not be, each with its reason."""
    named = env.read(env.WARM_IMPORTS)
    theirs = _installed(script) if named is None else [n.strip() for n in named.split(",") if n.strip()]
    failed = []
    for name in (*warm_rules.TORCH, *warm_rules.OURS, *theirs):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(name)
        except Exception as e:  # whatever it is, the script may say it better
            failed.append(f"{name} ({e})")
    return failed


def _installed(script: str) -> list[str]:
    """Installed packages among what the script imports; files of the user's own may change from life to life."""
    with open(script, encoding="utf-8") as f:
        names = warm_rules.imported_by(f.read())
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    found = []
    for name in names:
        spec = None
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(name.partition(".")[0])
        if spec is not None and warm_rules.is_installed(spec.origin, folders):
            found.append(name)
    return found


def unfit() -> str | None:
    """Why this process must not be forked; None: it may."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"the warm parent has {threads} threads after its imports"
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if target.startswith(_DEVICES):
                return f"the warm parent has opened {target}"
    return None


def resident() -> int:
    """Bytes of memory of ours that no file backs."""
    with open("/proc/self/statm") as f:
        _, pages, shared, *_ = f.read().split()
    return (int(pages) - int(shared)) * os.sysconf("SC_PAGESIZE")


class Parent:
    """Answers the supervisor until it closes the socket."""

    def __init__(self, control: socket.socket, supervisor: int) -> None:
        self._control = control  # to the supervisor
        self._lines = control.makefile("rb")  # what it asks for
        self._supervisor = supervisor  # its pid
        self._given = dict(os.environ)  # before the imports, which may set variables of their own

    def tell(self, **words: object) -> None:
        self._control.sendall(json.dumps(words).encode() + b"\n")

    def serve(self) -> "Worker":
        """Returns in a worker only."""
        while line := self._lines.readline():
            reason = unfit()
            if reason is not None:
                self.tell(unfit=reason)
                break
            worker = self._fork(json.loads(line))
            if worker is not None:
                return worker
        sys.exit(0)

    def _fork(self, life: dict[str, Any]) -> "Worker | None":
        receive, send = os.pipe()
        between = os.fork()
        if between == 0:
            os.close(receive)
            agent = os.fork()
            if agent:
                os.write(send, b"%d" % agent)
                os._exit(0)
            os.close(send)
            self._lines.close()
            self._control.close()
            return Agent(life, self._supervisor, self._set_by_imports()).run()
        os.close(send)
        pid = int(os.read(receive, 32) or b"0")
        os.close(receive)
        os.waitpid(between, 0)  # from here on the agent is the supervisor's
        self.tell(agent=pid)
        return None

    def _set_by_imports(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if self._given.get(name) != value}


class Agent:
    """What torchrun is in a cold life."""

    def __init__(self, life: dict[str, Any], supervisor: int, by_imports: dict[str, str]) -> None:
        self._life = life  # what the supervisor asked for, see `warm.Warm._request`
        self._supervisor = supervisor
        self._by_imports = by_imports  # variables that a worker's own imports would set

    def run(self) -> "Worker":
        """Returns in a worker only."""
        life = self._life
        self._be_adopted()
        os.setsid()
        log = os.open(life["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        server = _listen()
        workers = int(life["workers"])
        errors = os.path.join(life["folder"], "torchrun", f"{life['name']}_warm", "attempt_0")
        meet = warm_rules.Rendezvous(
            name=life["name"], host=life["host"], port=server.getsockname()[1], workers=workers, errors=errors
        )
        agent, pids = os.getpid(), []
        for rank in range(workers):
            os.makedirs(os.path.join(errors, str(rank)))
            environ = self._by_imports | warm_rules.worker_environment(life["env"], meet, rank)
            pid = os.fork()
            if pid == 0:
                server.close()
                return Worker(agent, rank, life["folder"], environ)
            pids.append(pid)
        self._serve_store(server, meet, pids)

    def _be_adopted(self) -> None:
        deadline = time.monotonic() + _ADOPTED
        while os.getppid() != self._supervisor and time.monotonic() < deadline:
            time.sleep(0.0002)
        shim.die_with(self._supervisor)

    def _serve_store(self, server: socket.socket, meet: warm_rules.Rendezvous, pids: list[int]) -> NoReturn:
        """Until all workers have ended. They stay uncollected: the supervisor reads how they ended.

        Only now, since the store brings threads. Workers that were quicker wait in the socket's queue.
        """
        from torch.distributed import TCPStore

        store = TCPStore(
            meet.host, meet.port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach()
        )
        ended = [os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT) for pid in pids]
        del store
        os._exit(any(e is None or e.si_status for e in ended))


def _listen() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=2048)
    return socket.create_server(("", 0), backlog=2048)


class Worker:
    """A forked process on its way to be what a cold start makes of it."""

    def __init__(self, agent: int, rank: int, folder: str, environ: dict[str, str]) -> None:
        self._agent = agent  # pid
        self._rank = rank  # local
        self._folder = folder  # of the life: its pipes
        self._environ = environ  # the whole of it

    def prepare(self, command: list[str]) -> types.ModuleType:
        """Become the process that runs `command`; the module to run it in."""
        shim.announce(self._agent, self._rank, self._folder)
        os.setsid()
        os.environ.clear()
        os.environ.update(self._environ)
        _reseed()
        sys.argv = list(command)
        script = command[0]
        if not getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
        main = types.ModuleType("__main__")
        main.__dict__.update(
            __file__=script,
            __cached__=None,
            __annotations__={},
            __builtins__=sys.modules["builtins"],
            __loader__=importlib.machinery.SourceFileLoader("__main__", script),
        )
        sys.modules["__main__"] = main
        return main


def _reseed() -> None:
    """`random` and `tempfile` see a fork by themselves; torch's default seed is the same in every process."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()


def run(main: types.ModuleType) -> None:
    """The script, as `python SCRIPT` runs it: what it raises is shown without our own frames."""
    script = sys.argv[0]
    try:
        with open(script, "rb") as f:
            code = compile(f.read(), script, "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as e:
        sys.excepthook(type(e), e, e.__traceback__.tb_next if e.__traceback__ is not None else None)
        sys.exit(1)


def main() -> Worker:
    """Returns in a worker only."""
    began = time.monotonic()
    control, supervisor = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    shim.die_with(supervisor)
    parent = Parent(control, supervisor)
    failed = preload(sys.argv[3])
    gc.collect()
    gc.freeze()  # so that the children's collector leaves these pages shared
    reason = unfit()
    if reason is not None:
        parent.tell(unfit=reason)
        sys.exit(0)
    parent.tell(ready=True, duration=time.monotonic() - began, resident=resident(), failed=failed)
    return parent.serve()


if __name__ == "__main__":
    run(main().prepare(sys.argv[3:]))
