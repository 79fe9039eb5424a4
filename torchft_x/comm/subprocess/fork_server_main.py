"""The helper process of `torchft_x.comm.subprocess.fork_server`.

It is started as ``python -m torchft_x.comm.subprocess.fork_server_main CONTROL_FD PARENT_PID``.

It has one thread, so that forking is safe. It reaps an ended child only when the parent has closed its pipe to that
child: until then the pid can't be reused. It ends with its parent, when it sees the end of the control pipe or a new
parent. The kernel sends each child SIGKILL when this process ends (PR_SET_PDEATHSIG is bound to the thread that
forked, and there is only one). A child also ends when its command pipe is closed.
"""

from __future__ import annotations

import ctypes
import os
import resource
import selectors
import signal
import sys
import traceback
from socket import socket

import torch

from torchft_x.comm.subprocess import child_main
from torchft_x.comm.subprocess.pipe import Pipe, close_all_but

_PR_SET_PDEATHSIG = 1
_LOOK = 1.0  # seconds between two checks whether the parent is alive


class _Ward:
    """A child of this helper."""

    def __init__(self, pid: int, lifeline: Pipe) -> None:
        self.pid = pid
        self.lifeline = lifeline
        self.ended = False  # whether its end has been reported
        self.dropped = False  # whether the parent has closed its pipe to the child


def main() -> None:
    control, parent = Pipe(socket(fileno=int(sys.argv[1]))), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides what it means
    wake, wake_far = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_far, False)
    signal.set_wakeup_fd(wake_far, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    loop = selectors.DefaultSelector()
    loop.register(control, selectors.EVENT_READ)
    loop.register(wake, selectors.EVENT_READ)
    wards: dict[int, _Ward] = {}
    while os.getppid() == parent:
        for key, _ in loop.select(_LOOK):
            if key.fileobj is control:
                try:
                    _, fds = control.recv()
                except EOFError:
                    return
                ward = _fork(*fds)
                wards[ward.pid] = ward
                loop.register(ward.lifeline, selectors.EVENT_READ, ward)
            elif key.fileobj == wake:
                try:
                    os.read(wake, 4096)
                except BlockingIOError:
                    pass
            else:
                ward = key.data
                loop.unregister(ward.lifeline)
                ward.dropped = True
                if not ward.ended:
                    os.kill(ward.pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
        for ward in [w for w in wards.values() if not w.ended]:
            ward.ended = _tell_end(ward)
        for ward in [w for w in wards.values() if w.ended and w.dropped]:
            os.waitpid(ward.pid, 0)
            ward.lifeline.close()
            del wards[ward.pid]


def _tell_end(ward: _Ward) -> bool:
    """Return whether a child has ended, and if so report its status to the parent."""
    found = os.waitid(os.P_PID, ward.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return False
    code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
    try:
        ward.lifeline.send({"status": code})
    except OSError:
        pass  # the parent has closed its end
    return True


def _fork(commands: int, lifeline: int) -> _Ward:
    told = Pipe(socket(fileno=lifeline))
    nursery = os.getpid()
    pid = os.fork()
    if pid:
        os.close(commands)
        try:
            told.send({"pid": pid})
        except OSError:
            pass
        return _Ward(pid, told)
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != nursery:
            os._exit(1)  # the helper ended before the prctl took effect
        close_all_but([commands])
        # No core dumps: aborts are expected.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        torch.set_num_threads(1)
        child_main.serve(Pipe(socket(fileno=commands)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
