"""Which files a training step and a join visit, measured in a real job. Run by file path in any checkout:

    python tests/structure/visits.py ROOT OUT

ROOT is the checkout whose package and tests (`tests.train.jobs`) are used, OUT the JSON file to write. The job is two
groups in one process with a real lighthouse and gloo on loopback. ``sys.setprofile`` sees every call of every thread that
Python starts; threads that torch or gRPC start in C are not seen.

* *visited*: a file of the package in which something was called;
* *crossing*: a call whose nearest caller of the package on the same thread's stack lies in another file. What the
  script, torch or asyncio calls is an *entry*, not a crossing. A coroutine counts when it is made, not when it goes on;
* *all threads*: without those that the other group has for itself. The thread of the rpc loop serves both, and the lighthouse.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

WARM_UP = 30  # steps before the first that is measured: the grants have their usual size
STEPS = 40
JOINS = 5
OTHER_STEP = 0.05  # seconds that a step of the group takes which trains while another one joins
_PAUSABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Window:
    """What was called in one step, or one join. Threads add to it without a lock: single dict operations only."""

    def __init__(self) -> None:
        self.calls: dict[
            str, Counter[tuple[str, str]]
        ] = {}  # thread's label -> (file of the caller or "", file) -> calls
        self.order: list[tuple[str, str]] = []  # (label, file): the first visits, in their order

    def note(self, label: str, caller: str, file: str) -> None:
        calls = self.calls.setdefault(label, Counter())
        if all(f != file for _, f in calls):
            self.order.append((label, file))
        calls[caller, file] += 1

    def sums(self, labels: set[str] | None = None) -> dict[str, int]:
        """Of the threads with these labels; None: of all."""
        calls: Counter[tuple[str, str]] = Counter()
        for label, counted in self.calls.items():
            if labels is None or label in labels:
                calls += counted
        return {
            "files": len({file for _, file in calls}),
            "crossings": sum(n for (caller, file), n in calls.items() if caller not in ("", file)),
            "entries": sum(n for (caller, _), n in calls.items() if not caller),
            "calls": sum(calls.values()),
        }

    def visits(self, label: str) -> list[dict[str, Any]]:
        """Files in the order of their first visit, with all calls into each, those from other files, and whose."""
        calls = self.calls.get(label, Counter())
        rows = []
        for file in [f for at, f in self.order if at == label]:
            into = {caller: n for (caller, to), n in calls.items() if to == file}
            others = {caller: n for caller, n in sorted(into.items()) if caller not in ("", file)}
            rows.append({"file": file, "calls": sum(into.values()), "entries": into.get("", 0), "from": others})
        return rows


class Recorder:
    """Sees every call of the threads that are started after `install`."""

    def __init__(self, package: Path) -> None:
        self._prefix = f"{package}{os.sep}"
        self._files: dict[str, str] = {}  # co_filename -> path below the package, "" outside
        self._starts: dict[CodeType, int] = {}  # where the first instruction of a generator's body is
        self._local = threading.local()  # `label` of this thread
        self.window: Window | None = None  # where calls are noted

    def install(self, label: str) -> None:
        start = threading.Thread.start

        def labelled(thread: threading.Thread) -> None:
            thread.started_by = getattr(self._local, "label", "")  # type: ignore[attr-defined]
            start(thread)

        threading.Thread.start = labelled  # type: ignore[method-assign]
        threading.setprofile(self._on_event)
        self.label(label)
        sys.setprofile(self._on_event)

    def label(self, label: str) -> None:
        """Of the calling thread, and of those it starts from now on, with their names behind it."""
        self._local.label = label

    def _label(self) -> str:
        try:
            return str(self._local.label)
        except AttributeError:
            thread = threading.current_thread()
            self._local.label = f"{getattr(thread, 'started_by', '')}/{thread.name}"
            return str(self._local.label)

    def _file(self, code: CodeType) -> str:
        name = code.co_filename
        if name not in self._files:
            self._files[name] = name.removeprefix(self._prefix) if name.startswith(self._prefix) else ""
        return self._files[name]

    def _on_event(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event != "call" or not (file := self._file(code)):
            return
        if code.co_flags & _PAUSABLE and frame.f_lasti != self._starts.setdefault(code, frame.f_lasti):
            return
        if (window := self.window) is None:
            return
        above = frame.f_back
        while above is not None and not self._file(above.f_code):
            above = above.f_back
        window.note(self._label(), "" if above is None else self._file(above.f_code), file)


def steady_steps(recorder: Recorder) -> dict[str, Any]:
    """A step of group 0 inside a grant, of two groups that train together."""
    from tests.train import jobs

    windows: list[Window] = []

    def train(group: int, address: str) -> None:
        recorder.label(f"group {group}")
        trainer = jobs.Trainer(group, address)
        together.wait()
        for step in range(WARM_UP + STEPS):
            if group == 0 and step >= WARM_UP:
                recorder.window = Window()
                windows.append(recorder.window)
            trainer.step()
        if group == 0:
            recorder.window = None
        together.wait()
        trainer.manager.shutdown()

    together = threading.Barrier(2, timeout=300)
    with jobs.lighthouse(min_replicas=2) as address:
        threads = [threading.Thread(target=train, args=(group, address)) for group in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(windows) == STEPS, "a group has failed; its traceback is above"
    return _result(windows, {"group 0"}, "group 1")


def joins(recorder: Recorder) -> dict[str, Any]:
    """A newcomer's start_quorum until it makes its process group for the quorum it got, while another group trains.

    Each in a job of its own, since grants are short for a while after a group has left.
    """
    windows = [_join(recorder) for _ in range(JOINS)]
    return _result(windows, {"newcomer"}, "other group")


def _join(recorder: Recorder) -> Window:
    from tests.train import jobs
    from tests.util import wait_for

    ended = threading.Event()

    def train() -> None:
        recorder.label("other group")
        while not ended.is_set():
            other.step(lambda: time.sleep(OTHER_STEP))
        other.manager.shutdown()

    def stop(*args: Any, **kwargs: Any) -> Any:
        recorder.window = None
        return configure(*args, **kwargs)

    recorder.label("main")
    with jobs.lighthouse() as address:
        recorder.label("other group")
        other = jobs.Trainer(0, address)
        thread = threading.Thread(target=train)
        thread.start()
        try:
            wait_for(lambda: other.manager.current_step() > WARM_UP, 120, "steps of the other group")
            recorder.label("newcomer")
            newcomer = jobs.Trainer(1, address)
            configure = newcomer.pg.configure
            newcomer.pg.configure = stop  # type: ignore[method-assign]
            window = recorder.window = Window()
            newcomer.manager.start_quorum()
            newcomer.manager.wait_quorum()
            assert recorder.window is None, "the quorum came without a process group"
            newcomer.optimizer.zero_grad = newcomer.optim.zero_grad  # type: ignore[method-assign]  # it has its quorum
            newcomer.step()
            newcomer.manager.shutdown()
        finally:
            recorder.window = None
            ended.set()
            thread.join()
    return window


def _result(windows: list[Window], own: set[str], without: str) -> dict[str, Any]:
    """The window whose like is most frequent in the training thread; of those the one with the least in other threads.

    Args:
        own: labels of the training thread.
        without: whose threads don't count, by the beginning of their labels.
    """

    def everybody(window: Window) -> dict[str, int]:
        return window.sums({label for label in window.calls if not label.startswith(without)})

    kinds = Counter(tuple(window.sums(own).values()) for window in windows)
    usual, count = kinds.most_common(1)[0]
    alike = [w for w in windows if tuple(w.sums(own).values()) == usual]
    chosen = min(alike, key=lambda w: everybody(w)["crossings"])  # what else comes by the clock is of other windows
    return {
        "training_thread": chosen.sums(own),
        "all_threads": everybody(chosen),
        "measured": len(windows),
        "alike": count,  # in the training thread
        "visits": {label: chosen.visits(label) for label in chosen.calls if not label.startswith(without)},
    }


def main(root: str, out: str) -> None:
    sys.path[0] = root  # instead of this file's own folder
    os.chdir(root)
    package = Path(root) / "torchft_x"
    recorder = Recorder(package)
    recorder.install("main")
    import torchft_x

    assert Path(torchft_x.__file__).parent == package, f"{torchft_x.__file__} was imported instead of {package}"
    measured = {"step": steady_steps(recorder), "join": joins(recorder)}
    Path(out).write_text(json.dumps(measured, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(os.path.realpath(sys.argv[1]), os.path.abspath(sys.argv[2]))
