"""The components: the same in every file and as their one list says, portable, and each mistake one sentence."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.started import ROOT, environment
from tests.unit.launch.lines import BOTH, FILES, TRAINING, interpreter, torchx
from tests.util import scaled, wait_for


@pytest.mark.parametrize("line", BOTH)
class TestCommandLine:
    """What TorchX itself makes of it, on each line."""

    @pytest.mark.parametrize("file", FILES)
    def test_dry_run_of_each_file(self, file: str, line: str) -> None:
        names = FILES[file]  # the functions of all files are the same (tests/unit/launch/test_components.py)
        for name in names if file == "components.py" else names[:1]:
            words = ["--script", str(Path(__file__)), "--", "--steps", "3"] if name in TRAINING else []
            words += ["--config", "mine", "--", "--training.steps", "3"] if name == "titan" else []
            done = torchx("run", "-s", "local_cwd", "--dryrun", f"./{file}:{name}", *words, line=line)
            assert done.returncode == 0, done.stderr
            assert f"'name': '{name}'" in done.stdout
            assert ("'--steps'" in done.stdout) == (name in TRAINING)
            assert ("'--training.steps'" in done.stdout) == (name == "titan")

    @pytest.mark.parametrize("scheduler", ["slurm", "kubernetes"])
    def test_titan_on_a_cluster(self, scheduler: str, line: str, tmp_path: Path) -> None:
        offline = ",validate_spec=False" if line == "nightly" else ""
        words = {"slurm": [], "kubernetes": ["-cfg", f"queue=default{offline}"]}[scheduler]
        options = {"slurm": ["--run_dir", str(tmp_path / "run")], "kubernetes": ["--image", "registry/titan:1"]}[
            scheduler
        ]
        titan = ["./components.py:titan", *options, "--config", "debug", "--", "--training.steps", "3"]
        done = torchx("run", "-s", scheduler, *words, "--workspace=", "--dryrun", *titan, line=line)
        assert done.returncode == 0, done.stderr
        asked = done.stdout.split("=== SCHEDULER REQUEST ===")[1]
        for word in ("torchft_x.compat.titan", "torchft.llama3", "debug", "--training.steps", "JE_ARROW_MALLOC_CONF"):
            assert word in asked

    def test_the_default_component(self, line: str) -> None:
        done = torchx("run", "--dryrun", "--", "--script", str(Path(__file__)), line=line)
        assert done.returncode == 0, done.stderr
        assert "'name': 'hsdp'" in done.stdout

    def test_a_mistake_is_the_last_line(self, line: str) -> None:
        """To TorchX all that follows a word without a flag is the script's."""
        done = torchx("run", "-s", "local_cwd", "./components.py:ddp", "--replicas", "2", "train.py", line=line)
        assert done.returncode in (1, 2)
        said = r"torchft_x: 'train\.py' would be an argument .* write --script train\.py, .*"
        assert re.search(said + "$", done.stderr.splitlines()[-1]), done.stderr
        assert "Traceback" not in done.stderr

    def test_from_another_directory_it_says_what_is_missing(self, line: str, tmp_path: Path) -> None:
        """A clone isn't on the path there (torchx-nightly puts it there)."""
        done = torchx("run", "-s", "local_cwd", "--dryrun", f"{ROOT}/components.py:ddp", cwd=tmp_path, line=line)
        assert done.returncode == 2
        absent = f"torchft_x is neither installed for .* nor in {tmp_path}: run torchx in the clone, or install it: .*"
        default = f"torchft_x: The default script .* does not exist in {tmp_path}; name yours with --script."
        assert re.search(f"^({absent}|{default})$", done.stderr.splitlines()[-1]), done.stderr
        assert "Traceback" not in done.stderr

    def test_the_way_round_for_flags_of_the_script_given_twice(self, line: str) -> None:
        options = ["--script", str(Path(__file__)), "--name", "mine"]
        script = ["--a=1", "--a=2", "--name=the-scripts"]  # also one that the component has
        done = torchx("run", "-s", "local_cwd", "--dryrun", "./components.py:ddp", *options, "--", *script, line=line)
        assert done.returncode == 0, done.stderr
        application = done.stdout.split("=== SCHEDULER REQUEST ===")[0]
        assert re.findall(r"'(--\w+=[^']*)'", application) == script

    def test_a_job_under_a_lighthouse_that_stands_alone(self, line: str, tmp_path: Path) -> None:
        (tmp_path / "script.py").write_text("print('the script ran')")
        files = tmp_path / "lighthouse"
        command = [str(Path(interpreter(line)).with_name("torchx")), "run", "-s", "local_cwd"]
        command += ["./components.py:lighthouse", "--port", "0", "--run_dir", str(files)]
        with open(tmp_path / "out.txt", "wb") as out:
            cli = subprocess.Popen(
                command, cwd=ROOT, env=environment(), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        words = ["run", "-s", "local_cwd", "./components.py:ddp", "--script", str(tmp_path / "script.py")]
        try:
            wait_for((files / "lighthouse").exists, 30, "its address")
            words += ["--lighthouse", (files / "lighthouse").read_text().strip(), "--run_dir", str(tmp_path / "run")]
            done = torchx(*words, "--token_file", str(files / "token"), line=line)
            assert done.returncode == 0, done.stderr
            assert done.stderr.count("the script ran") + done.stdout.count("the script ran") == 2
            assert cli.poll() is None
        finally:
            cli.send_signal(signal.SIGINT)
            cli.wait(scaled(30))
        token = (files / "token").read_text().strip()
        assert not any(token in text for text in (done.stdout, done.stderr, (tmp_path / "out.txt").read_text()))
