"""The warm parent, run by its file's path: a process that has imported a worker's modules, and forks workers.

    python -u warm_server.py CONTROL SUPERVISOR SCRIPT [ARG...]

It imports in two parts. A first attempt waits for the first part: the script's imports from torch and torchft_x. The
supervisor asks for the second part in that attempt: all other modules for later attempts, the script's other packages
too.

CONTROL is the descriptor of a socket to the supervisor (warm_client.py), with one line of JSON each way. SCRIPT's text
is parsed for its imports; it is run only in the workers. ARG... is shown to people who read ``ps``.

The supervisor requests forks: of an attempt's workers, or of the process with their store. A child that ends at once
forks them, so that the supervisor (a sub-reaper) adopts them. It watches them like all its children, and they die with
it, not with the warm parent.

A process may be forked only while it has one thread, so the parent never makes a tensor operation, a channel, a store,
or a context on a device. It checks this before each fork, and exits with the reason rather than fork unsoundly.
"""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # our own folder, whose modules would shadow others of the same name

import contextlib
import gc
import importlib.util
import json
import os
import socket
import sysconfig
import time
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from torchft_x import env
from torchft_x.launch.process import group_store, shim
from torchft_x.launch.workers import warm_rules, warm_worker
from torchft_x.timing import PATIENCE

_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel")  # prefixes of files open while a driver is in use


class Imports:
    """Imports of the modules that workers will need, ahead of the forks."""

    def __init__(self, script: str) -> None:
        with open(script, encoding="utf-8") as f:
            self._of_script = warm_rules.imported_by(f.read())
        self.failed: list[str] = []  # modules that could not be imported, each with the reason

    def first(self) -> None:
        """Import the modules for which the first attempt waits."""
        self._load(warm_rules.LAZY_COMPILER)
        with contextlib.suppress(KeyError):  # its import failed
            sys.modules[warm_rules.LAZY_COMPILER].defer_compiler_import()
        for module, names in self._of_script:
            if warm_rules.root(module) in warm_rules.KNOWN:
                self._load(module, names)
        for module in warm_rules.OURS:
            self._load(module)

    def rest(self) -> None:
        """Import the modules that only later attempts need."""
        named = env.read(env.WARM_IMPORTS)
        theirs = self._installed() if named is None else [n.strip() for n in named.split(",") if n.strip()]
        for module in (*warm_rules.TORCH, *theirs):
            self._load(module)

    def _load(self, module: str, names: tuple[str, ...] = ()) -> None:
        """Import a module and the `names` of a ``from ... import``, which may be submodules, or load some."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                __import__(module, fromlist=names)
        except Exception as e:  # the script will raise the same error, with a better traceback
            self.failed.append(f"{module} ({e})")

    def _installed(self) -> list[str]:
        """Return the script's imports from installed packages. The user's own files may change between attempts."""
        folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        found = []
        for module, _ in self._of_script:
            spec = None
            with contextlib.suppress(ImportError, ValueError):
                spec = importlib.util.find_spec(warm_rules.root(module))
            if spec is not None and warm_rules.is_installed(spec.origin, folders):
                found.append(module)
        return found


def unfit() -> str | None:
    """Return the reason for which this process must not be forked, or None if it may be."""
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
    """Return the bytes of this process's resident memory that are not backed by files."""
    with open("/proc/self/statm") as f:
        _, pages, shared, *_ = f.read().split()
    return (int(pages) - int(shared)) * os.sysconf("SC_PAGESIZE")


class Parent:
    """Warm parent process: imports, and forks at the supervisor's requests, until the supervisor ends."""

    def __init__(self, control: socket.socket, supervisor: int, script: str) -> None:
        self._control = control  # socket to the supervisor
        self._supervisor = supervisor  # pid
        self._given = env.everything()  # environment before the imports, which may set variables of their own
        self._script = script
        self._duration = 0.0  # seconds that all imports have taken

    def serve(self) -> tuple[int, str, dict[str, str]]:
        """Serve the supervisor's requests. Return only in a forked worker, its arguments of `warm_worker.prepare`."""
        imports = Imports(self._script)
        self._import(imports.first)
        self._tell_ready()
        while True:
            request, listener = self._next_request()
            if "rest" in request:
                self._import(imports.rest)
                self._tidy()
                self._tell_ready(resident=resident(), duration=self._duration, failed=imports.failed)
                continue
            self._check()
            workers = request["workers"]
            pids, index = fork_orphans(len(workers))
            if index is None:
                if listener is not None:
                    os.close(listener)
                report(self._control, pids=pids)
                continue
            self._control.close()
            self._be_adopted()
            if listener is not None:
                self._serve_store(listener, **request["store"])
            by_imports = {name: value for name, value in env.everything().items() if self._given.get(name) != value}
            return index, request["folder"], by_imports | workers[index]

    def _import(self, load: Callable[[], None]) -> None:
        """Run the imports, and freeze their objects: the children's garbage collector then leaves our shared pages alone."""
        began = time.monotonic()
        gc.disable()  # imports make a million objects and hardly any garbage; collecting takes a tenth of their time
        load()
        gc.freeze()
        gc.enable()
        self._duration += time.monotonic() - began

    def _tidy(self) -> None:
        """Collect the imports' garbage, after which the collector scans a child's own objects less often; too slow for a first attempt."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    def _tell_ready(self, **words: object) -> None:
        self._check()
        report(self._control, ready=True, **words)

    def _check(self) -> None:
        reason = unfit()
        if reason is not None:
            report(self._control, unfit=reason)
            sys.exit(0)

    def _next_request(self) -> tuple[dict[str, Any], int | None]:
        """Wait for the next request, of which there is never more than one; return it with the store's listener, if any."""
        text, listener = b"", None
        while not text.endswith(b"\n"):
            data, fds, _, _ = socket.recv_fds(self._control, 65536, 1)
            if not data:
                sys.exit(0)  # the supervisor has ended
            text += data
            listener = fds[0] if fds else listener
        return dict(json.loads(text)), listener

    def _be_adopted(self) -> None:
        """Make this forked process a child of the supervisor, with which it dies. It must not die with the warm parent."""
        os.setsid()
        deadline = time.monotonic() + PATIENCE
        while os.getppid() != self._supervisor and time.monotonic() < deadline:
            time.sleep(0.0002)
        shim.die_with(self._supervisor)

    def _serve_store(self, listener: int, log: str, host: str, port: int) -> NoReturn:
        words = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(words, 1)
        os.dup2(words, 2)
        os.close(words)
        group_store.serve(listener, host, port)


def fork_orphans(count: int) -> tuple[list[int], int | None]:
    """Fork `count` processes through a child that ends at once, so that they are orphans.

    Return their pids and None in the caller, and no pids and the process's index in each forked process.
    """
    receive, send = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(receive)
        pids: list[int] = []
        for index in range(count):
            pid = os.fork()
            if pid == 0:
                os.close(send)
                return [], index
            pids.append(pid)
        os.write(send, json.dumps(pids).encode())
        os._exit(0)
    os.close(send)
    text = os.read(receive, 65536)
    os.close(receive)
    os.waitpid(between, 0)
    return (json.loads(text), None) if text else sys.exit("A fork has failed.")


def report(control: socket.socket, **words: object) -> None:
    control.sendall(json.dumps(words).encode() + b"\n")


if __name__ == "__main__":
    control, supervisor = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    shim.die_with(supervisor)
    worker = Parent(control, supervisor, sys.argv[3]).serve()
    warm_worker.run(warm_worker.prepare(*worker, sys.argv[3:]))
