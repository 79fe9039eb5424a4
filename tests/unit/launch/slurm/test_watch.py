"""What the watcher does without a Slurm. On a real one: tests/extended/slurm/test_watch.py."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.unit.launch.slurm.made import spec
from torchft_x.__main__ import main
from torchft_x.errors import ConfigError
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.controller import Controller
from torchft_x.launch.slurm.rules.manifest import Manifest, Part
from torchft_x.launch.slurm.rules.values import ReportLost
from torchft_x.launch.slurm.script import excluded, render, submission
from torchft_x.launch.slurm.submit import SupersededError, submit_parts
from torchft_x.launch.slurm.watch import watcher


def script(run_dir: Path, *options: str, kind: str = "trainer") -> str:
    made = spec(
        run_dir=str(run_dir),
        folder=str(run_dir),
        options=options,
        kind=kind,
        command=("sleep", "600"),
        python="true",
    )
    return render(made)


def manifest(run_dir: Path, **changes: object) -> Manifest:
    """Two groups, whose lighthouse is somebody else's."""
    path = str(store.folder(run_dir) / "trainer.sh")
    parts = tuple(Part(role="trainer", kind="trainer", number=n, script=path) for n in range(2))
    made = Manifest(
        app=f"app-{run_dir.parent.name}", run_dir=str(run_dir), token_file=str(run_dir / "token"),
        retries=3, own_lighthouse=False, parts=parts,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def written(run_dir: Path, **changes: object) -> Manifest:
    made = manifest(run_dir, **changes)
    store.create(made)
    Path(made.parts[0].script).write_text(script(run_dir))
    store.tell_groups(made)
    return made


def test_who_was_quicker_is_not_undone(tmp_path: Path) -> None:
    """Slurm is not even asked."""
    before = written(tmp_path / "run")
    store.change(before.run_dir, lambda now: now.with_part(dataclasses.replace(now.parts[1], job="7_1", ticket="t")))
    with pytest.raises(SupersededError, match="trainer/1 was submitted by somebody else: it is the job 7_1 now"):
        submit_parts(Controller(), before, [before.parts[1]])
    assert store.read(before.run_dir).parts[1].job == "7_1"


def test_nodes_are_excluded_besides_those_of_the_user(tmp_path: Path) -> None:
    plain, own = (script(tmp_path, *options) for options in ((), ("--exclude=n[1-2]",)))
    assert (excluded(plain), excluded(own)) == ([], ["n[1-2]"])
    for text, expected in ((plain, "--exclude=n3,n4"), (own, "--exclude=n[1-2],n3,n4")):
        made = submission(text, app="a", role="trainer", ticket="t", run_dir="/r", numbers=[1], exclude=["n3", "n4"])
        assert [line for line in made.splitlines() if "--exclude" in line] == [f"#SBATCH {expected}"]
    assert "--exclude=n[1-2]\n" in submission(own, app="a", role="trainer", ticket="t", run_dir="/r", numbers=[1])


def test_an_address_that_others_may_have_written_gets_no_token(tmp_path: Path) -> None:
    """T1."""
    (tmp_path / "lighthouse").write_text("http://127.0.0.1:1")
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="may be written by other users"):
        watcher.ask(manifest(tmp_path))


def test_no_job_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm-watch", str(tmp_path)]) == 2
    assert "no job of slurm_ft has that run directory" in capsys.readouterr().err


@pytest.mark.parametrize("how", [{"cancelled": True}, {"outcome": 0}])
def test_a_job_that_is_over_needs_no_slurm(tmp_path: Path, how: dict[str, object]) -> None:
    made = written(tmp_path / "run", **how)
    assert watcher.main([made.run_dir]) == 0


def test_a_watchers_report_leaves_what_a_batch_script_reported_in_place(tmp_path: Path) -> None:
    """The watcher does not know the script's reason, and gives the group up later for one of its own."""
    made = written(tmp_path / "run")
    watch = watcher.Watcher(tmp_path / "run", Controller())
    store.tell_groups(made, {"1": "no host is left for it"})
    watch.act(ReportLost({"0": "its deadline passed"}), made)
    assert store.lost_groups(made.run_dir) == {"0": "its deadline passed", "1": "no host is left for it"}
    watch.act(ReportLost({"1": "its job has ended"}, frozenset("0")), made)
    assert store.lost_groups(made.run_dir) == {"1": "no host is left for it"}


def test_watchers_run_beside_groups_and_a_lighthouse_that_stands_alone(tmp_path: Path) -> None:
    for kind, wanted in (("lighthouse", True), ("trainer", True), ("sidecar", False), ("", False)):
        assert ("slurm-watch" in script(tmp_path, kind=kind)) is wanted
