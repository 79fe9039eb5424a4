"""The warm parent: a process that has imported what a worker imports, and forks workers. Run by file path:

    python -u warm_server.py CONTROL SUPERVISOR WORKERS SCRIPT [ARG...]

CONTROL is the descriptor of a socket to the supervisor (warm_client.py): one line of JSON each way. SCRIPT's text is looked
at for what it imports; it is run only in the workers. Its arguments are there for people who read ``ps``.

A life is a small tree: an *agent*, the supervisor's own child, which serves the group's store and
is the parent of the workers. It is forked ahead and waits until the supervisor asks for a life, then the next one is
forked. So that all of it dies with the supervisor and none of it with the warm parent, the agent is forked by a child
that ends at once, and is adopted by the supervisor (a sub-reaper).

A process may be forked only while it has one thread: the parent never makes a tensor operation, a channel, a store,
or a context on a device. It looks before each fork, and ends with its reason rather than fork unsoundly.
"""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # our own folder: its `parse` and `tree` are not what others mean

import contextlib
import gc
import importlib.util
import json
import os
import socket
import sysconfig
import time
import warnings
from typing import Any, NoReturn

from torchft_x import env
from torchft_x.launch.process import environment, group_store, shim
from torchft_x.launch.workers import warm_rules, warm_worker
from torchft_x.launch.workers.warm_worker import Worker

_NEXT = 0.5  # seconds until the next life is forked: the one that begins shall have the processor
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
    """Keeps one agent in waiting, until the supervisor ends."""

    def __init__(self, control: socket.socket, supervisor: int, workers: int) -> None:
        self._control = control  # to the supervisor; the agent in waiting reads it, we only write
        self._supervisor = supervisor  # its pid
        self._workers = workers  # of a life
        self._given = env.everything()  # before the imports, which may set variables of their own

    def serve(self) -> Worker:
        """Returns in a worker only."""
        while True:
            reason = unfit()
            if reason is not None:
                tell(self._control, unfit=reason)
                sys.exit(0)
            taken, take = os.pipe()
            pid, worker = self._fork(taken, take)
            if worker is not None:
                return worker
            os.close(take)
            tell(self._control, agent=pid)
            os.read(taken, 1)  # until it is asked for a life, or is dead
            os.close(taken)
            time.sleep(_NEXT)

    def _fork(self, taken: int, take: int) -> tuple[int, Worker | None]:
        """An agent's pid; in a worker: the second."""
        receive, send = os.pipe()
        between = os.fork()
        if between == 0:
            os.close(receive)
            agent = os.fork()
            if agent:
                os.write(send, b"%d" % agent)
                os._exit(0)
            os.close(send)
            os.close(taken)
            return 0, Agent(self._control, take, self._supervisor, self._set_by_imports()).run(self._workers)
        os.close(send)
        pid = int(os.read(receive, 32) or b"0")
        os.close(receive)
        os.waitpid(between, 0)  # from here on the agent is the supervisor's
        return pid, None

    def _set_by_imports(self) -> dict[str, str]:
        return {name: value for name, value in env.everything().items() if self._given.get(name) != value}


class Agent:
    """Parent of a life's workers, and their store."""

    def __init__(self, control: socket.socket, take: int, supervisor: int, by_imports: dict[str, str]) -> None:
        self._control = control  # to the supervisor; closed once a life is asked for
        self._take = take  # pipe to the parent; written then
        self._supervisor = supervisor  # pid
        self._by_imports = by_imports  # variables that a worker's own imports would set

    def run(self, workers: int) -> Worker:
        """Returns in a worker only."""
        os.setsid()
        self._be_adopted()
        server = group_store.loopback()
        agent = os.getpid()
        pids: list[int] = []
        words: list[int] = []  # pipes, by rank
        for _ in range(workers):
            read_end, write_end = os.pipe()
            pid = os.fork()
            if pid == 0:
                for fd in (write_end, *words, self._take):
                    os.close(fd)
                server.close()
                self._control.close()
                return Worker(agent, read_end)
            os.close(read_end)
            pids.append(pid)
            words.append(write_end)
        self._serve(server, pids, words)

    def _be_adopted(self) -> None:
        deadline = time.monotonic() + _ADOPTED
        while os.getppid() != self._supervisor and time.monotonic() < deadline:
            time.sleep(0.0002)
        shim.die_with(self._supervisor)

    def _serve(self, server: socket.socket, pids: list[int], words: list[int]) -> NoReturn:
        """Until all workers have ended. They stay uncollected: the supervisor reads how they ended.

        The store comes after the forks, since it brings threads.
        """
        from torch.distributed import TCPStore

        host, port = server.getsockname()[:2]
        store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())
        self._give_out(self._await_life(), host, port, words)
        ended = [os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT) for pid in pids]
        del store
        os._exit(any(e is None or e.si_status for e in ended))

    def _await_life(self) -> dict[str, Any]:
        """What the supervisor asks for; it waits for an answer, so there is never more than one line."""
        with self._control.makefile("rb") as lines:
            line = lines.readline()
        if not line:
            os._exit(0)
        tell(self._control, taken=os.getpid())
        self._control.close()
        os.write(self._take, b"!")
        os.close(self._take)
        return dict(json.loads(line))

    def _give_out(self, life: dict[str, Any], host: str, port: int, words: list[int]) -> None:
        """Tell each worker which one of which life it is."""
        log = os.open(life["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        folder = life["folder"]
        meet = environment.Rendezvous(name=life["name"], host=host, port=port, workers=len(words), folder=folder)
        for rank, fd in enumerate(words):
            environment.error_file(folder, rank).parent.mkdir(parents=True)
            environ = self._by_imports | environment.worker_environment(life["env"], meet, rank)
            with open(fd, "w") as pipe:
                json.dump({"rank": rank, "folder": folder, "env": environ}, pipe)


def tell(control: socket.socket, **words: object) -> None:
    control.sendall(json.dumps(words).encode() + b"\n")


def main() -> Worker:
    """Returns in a worker only."""
    began = time.monotonic()
    control, supervisor, workers = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    shim.die_with(supervisor)
    parent = Parent(control, supervisor, workers)
    failed = preload(sys.argv[4])
    gc.collect()
    gc.freeze()  # so that the children's collector leaves these pages shared
    reason = unfit()
    if reason is not None:
        tell(control, unfit=reason)
        sys.exit(0)
    tell(control, ready=True, duration=time.monotonic() - began, resident=resident(), failed=failed)
    return parent.serve()


if __name__ == "__main__":
    warm_worker.run(main().prepare(sys.argv[4:]))
