"""A job of kubernetes_ft that trains until a test ends it, with the operations of a test that breaks it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.events import commits, training_together
from tests.extended.kubernetes.shell import MODEL, USER, Shell, handle_of
from tests.started import ROOT
from tests.util import wait_for
from torchft_x.launch.kubernetes.handle import parse
from torchft_x.launch.kubernetes.rules import names
from torchft_x.launch.kubernetes.rules.parts import LIGHTHOUSE, TRAINER
from torchft_x.observe.events import EventTail

Json = dict[str, Any]

_SHARED = "/shared"  # the run directory of the pods: a folder that all nodes share


class TrainingJob:
    """A training job, at first of two groups.

    `folder` is created and shared by all nodes: the run directory, with the parameters at each step. `words` are
    further parameters of the component.
    """

    def __init__(self, shell: Shell, folder: Path, *words: str) -> None:
        self.shell = shell
        self.space = shell.space
        self.handle = self.app = ""  # set when the job is submitted
        self._folder, self._words = folder, words
        folder.mkdir()
        os.chown(folder, USER, -1)
        self._tail = EventTail(folder)
        self._events: list[Json] = []

    def begin(self) -> None:
        """Submit the job. Both groups train on return."""
        mount = f"type=bind,src={self._folder},dst={_SHARED}"
        words = ["--replicas", "2", "--mounts", mount, "--run_dir", _SHARED, "--env", "OMP_NUM_THREADS=1", *self._words]
        trains = [*MODEL, "--pace", "0.05", "--steps", "1000000"]
        trains += ["--until", f"{_SHARED}/until", "--dump-params", f"{_SHARED}/dumps"]
        self.handle = handle_of(self.shell.run(*words, "--script", "benchmarks/trial/ddp.py", "--", *trains))
        self.app = parse(self.handle).app
        wait_for(lambda: self.together(2), 60, "both groups")

    def scale(self, groups: int) -> None:
        self.shell.own("scale", self.handle, "--replicas", str(groups))

    def finish(self) -> list[str]:
        """Let the job come to its end. Return findings, none if all is well."""
        newest = max(int(e["step"]) for e in commits(self.events()))
        part, until = self._folder / "until.part", self._folder / "until"
        part.write_text(str(newest + 100))
        part.chmod(0o644)
        part.rename(until)
        wait_for(self._is_over, 120, "the job's end")
        status = self.shell.say("status", self.handle)
        findings = [] if "State: SUCCEEDED" in status else [status]
        command = [sys.executable, "-m", "benchmarks.evidence.check_params", str(self._folder / "dumps")]
        checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        print(checked.stdout.strip()[-600:], checked.stderr.strip()[-2000:], flush=True)
        return findings if checked.returncode == 0 else [*findings, checked.stdout.strip()[-2000:]]

    def events(self) -> list[Json]:
        """Return all events up to now, in order of time."""
        if new := self._tail.new():
            self._events = sorted([*self._events, *new], key=lambda e: float(e["t"]))
        return self._events

    def together(self, groups: int) -> bool:
        recent = [e for e in self.events() if float(e["t"]) > time.time() - 2]
        return training_together(recent, groups)

    def pod(self, group: str) -> Json:
        found = wait_for(lambda: self.space.ready(**{names.GROUP: group}), 60, f"a pod of group {group}")
        assert found is not None
        return found

    def pods(self, group: str) -> list[str]:
        """Return the uids of all pods of a group, also of those that have ended."""
        every = self.space.list("pods")
        return [p["metadata"]["uid"] for p in every if names.label_of(p, names.GROUP) == group]

    def lighthouse(self) -> Json:
        found = wait_for(lambda: self.space.ready(**{names.ROLE: LIGHTHOUSE}), 60, "the lighthouse's pod")
        assert found is not None
        return found

    def _is_over(self) -> bool:
        jobs = {j["metadata"]["name"]: j["status"] for j in self.space.list("batch/v1/jobs")}
        parts = ((LIGHTHOUSE, 0), (TRAINER, 0), (TRAINER, 1))
        return all(jobs[names.part(self.app, role, k)].get("succeeded") for role, k in parts)
