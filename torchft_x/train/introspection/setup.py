"""Starts and stops a trainer's introspection, if it has a supervisor.

The supervisor sees the rank's status (shared_status.py), answers after an event (query_server.py), and the exception
that ends the process. For the user's own tools torch's server (worker_server.py) is started on request.

All files are in the attempt's private folder (mode 0700) that the supervisor names (`env.AttemptEnv`): nothing is
reachable from a network. A process that can't have them trains without (docs/operate.md, decision 22).
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType

from torchft_x import env
from torchft_x.core.commit.step import Step
from torchft_x.observe.events import subscribe
from torchft_x.train.introspection import worker_server
from torchft_x.train.introspection.query_server import QueryServer
from torchft_x.train.introspection.shared_status import Board, SharedStatus
from torchft_x.train.setup.options import Options

logger = logging.getLogger(__name__)

_ERROR_LIMIT = 20_000  # last characters of an uncaught exception's traceback that are kept

_lock = threading.Lock()  # guards the variables below
_owner = 0  # pid that owns `_board` and `_answers`; a forked child has none
_board: Board | None = None  # one per process
_answers: QueryServer | None = None  # one per process
_status: SharedStatus | None = None  # status of the newest Manager


def status_of(
    options: Options, step: Step, replica_id: str, group_story: Callable[[], list[str]] = list
) -> SharedStatus:
    """Make this Manager's status and show it to the supervisor, if there is one. Never raises.

    `group_story` returns the group's latest decisions.
    """
    global _status
    status, folder = SharedStatus(options, step, replica_id, group_story), env.read_attempt().folder
    if not os.path.isdir(folder):
        return status
    subscribe(status.receive)
    with _lock:
        if _owner != os.getpid():
            _begin(folder, options.group_rank)
        if _status is not None:
            _status.show(None)
        _status = status
        status.thread_id = 0 if _answers is None else _answers.thread_id
        status.show(_board)
        if env.read(env.WORKER_SERVER, "0") == "1":
            worker_server.start(os.path.join(folder, f"{options.group_rank}.torch.sock"), status.read)
    return status


def _begin(folder: str, rank: int) -> None:
    """Make the board and the query server, once in a process. Called under the lock."""
    global _owner, _board, _answers
    _owner, _board, _answers = os.getpid(), None, None
    _note_uncaught(os.path.join(folder, f"{rank}.error.json"))
    try:
        _board = Board(os.path.join(folder, f"{rank}.status"))
        _answers = QueryServer(folder, rank)
    except (OSError, AttributeError) as e:  # no memfd, or an odd file system: train without
        logger.debug("the supervisor does not see this process: %s", e)
    atexit.register(_end, os.getpid())


def _end(owner: int) -> None:
    """Stop introspection before Python ends: mark this process as leaving, and close the query server."""
    if owner != os.getpid():  # a forked child
        return
    if _status is not None:
        _status.leave()
    if _answers is not None:
        _answers.close()


def _forget() -> None:
    """Detach a forked child from the status, whose memory is its parent's."""
    global _lock, _status
    _lock = threading.Lock()
    if _status is not None:
        _status.show(None)
    _status = None


os.register_at_fork(after_in_child=_forget)


def _note_uncaught(path: str) -> None:
    """Install an excepthook that writes the exception that ends this process to `path`.

    The form is that of torchelastic's ``error.json``, which only scripts with its ``@record`` write.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            stack = "".join(traceback.format_exception(kind, error, trace))[-_ERROR_LIMIT:]
            extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
            with open(path, "w", encoding="utf-8") as f:
                json.dump({"message": {"message": f"{kind.__name__}: {error}", "extraInfo": extra}}, f)
        except Exception as e:  # the user must see the script's own error in any case
            logger.debug("the error is not kept: %s", e)
        before(kind, error, trace)

    sys.excepthook = hook
