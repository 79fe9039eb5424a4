"""Start process groups' children in milliseconds: fork a process that has torch imported and one thread.

The trainer has threads and can't be forked safely, and starting Python with torch takes seconds. So one helper
process per trainer is started cleanly (exec). It imports torch, forks a child per request, kills the child on
request, and reports how it ended. It ends with the trainer, and the children end with it
(`torchft_x.comm.subprocess.fork_server_main`).
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from pathlib import Path

import torchft_x
from torchft_x import env
from torchft_x.comm.subprocess.pipe import Pipe
from torchft_x.errors import ConfigError

_END_GRACE = 2.0  # seconds that process exit waits for the helper's exit


class ForkServer:
    """Owner of the helper process. Starts it when first needed, and again if it was killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Pipe | None = None  # pipe for requests to the helper
        self._pid = os.getpid()  # a forked process has no helper of its own yet

    def warm_up(self) -> None:
        """Start the helper in the background, so that the first child needn't wait for its imports."""
        with self._lock:
            self._ready()

    def child(self) -> tuple[Pipe, Pipe]:
        """Start a child, and return its pipes (commands, lifeline) at once. Both work as soon as the child runs.

        `lifeline` receives ``{"pid": n}`` when the child runs and ``{"status": wait status}`` when it has ended.
        Closing our end of `lifeline` kills the child. Raises `ConfigError` if the system can't have such children.
        """
        commands, far_commands = Pipe.pair()
        lifeline, far_lifeline = Pipe.pair()
        try:
            with self._lock:
                for attempt in range(2):
                    control = self._ready()
                    try:
                        control.send({}, [far_commands.fileno(), far_lifeline.fileno()])
                        break
                    except OSError:  # the helper was killed
                        self._forget()
                        if attempt:
                            raise
        finally:
            far_commands.close()
            far_lifeline.close()
        return commands, lifeline

    def _ready(self) -> Pipe:
        if self._pid != os.getpid():  # the helper is our parent's
            self._process = self._control = None
            self._pid = os.getpid()
        if self._process is not None and self._process.poll() is not None:
            self._forget()
        if self._control is None:
            self._start()
        assert self._control is not None
        return self._control

    def _start(self) -> None:
        if sys.platform != "linux":
            raise ConfigError(
                f"Process groups in a child process need Linux (this is {sys.platform}): use the one without 'Baby'."
            )
        near, far = Pipe.pair()
        environ = env.everything()
        root = str(Path(torchft_x.__file__).parent.parent)
        environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [environ.get("PYTHONPATH")])])
        # Libraries that start threads on import would make the fork unsafe; these variables limit them to one thread.
        environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1"))
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-W",
                    "ignore",
                    "-m",
                    "torchft_x.comm.subprocess.fork_server_main",
                    str(far.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
                env=environ,
            )
        except OSError as e:
            near.close()
            raise ConfigError(f"The process group's helper process can't be started: {e}.") from None
        finally:
            far.close()
        self._control = near

    def _forget(self) -> None:
        if self._control is not None:
            self._control.shut()  # the helper sees the end even if a forked process holds our end
            self._control.close()
        if self._process is not None:
            try:
                self._process.wait(_END_GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._control = None

    def close(self) -> None:
        """End the helper, and with it all children."""
        with self._lock:
            if self._pid == os.getpid():
                self._forget()


NURSERY = ForkServer()  # one per process
atexit.register(NURSERY.close)
