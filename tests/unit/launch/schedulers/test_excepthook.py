"""The last sentence of `torchx run`: pure, and by TorchX's real command on both lines."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from torchft_x.errors import ConfigError
from torchft_x.launch.schedulers.excepthook import SchedulerArguments, check_options, explain, read_command, thread_hook

NOTHING = SchedulerArguments(None, ())


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["ft.ddp", "--script", "a.py"], NOTHING),
        (["-s", "slurm", "-cfg", "partion=gpu,time=1", "ft.ddp"], SchedulerArguments("slurm", ("partion", "time"))),
        (["--scheduler=slurm", "--scheduler_args", "a=1,2,b=3", "c.py:x"], SchedulerArguments("slurm", ("a", "b"))),
        (["--dryrun", "--workspace", "", "ft.ddp", "-s", "slurm"], NOTHING),  # the script's own
        (["-s"], NOTHING),  # TorchX says what is wrong with it
    ],
)
def test_what_the_command_line_says_of_the_scheduler(words: list[str], asked: SchedulerArguments) -> None:
    assert read_command(words) == asked


def test_a_slip_in_a_schedulers_option_is_named() -> None:
    asked = SchedulerArguments("slurm", ("time", "partion"))
    with pytest.raises(ConfigError, match=r"-cfg partion=\.\.\.: the scheduler slurm .*; did you mean partition\?"):
        check_options(asked, "slurm", ["partition", "time"])
    with pytest.raises(ConfigError, match="it has partition, time"):
        check_options(SchedulerArguments("slurm", ("zzz",)), "slurm", ["time", "partition"])
    check_options(SchedulerArguments("slurm", ("time",)), "slurm", ["time"])


def test_a_flag_is_true_or_false() -> None:
    asked = read_command(["-s", "local_ft", "-cfg", "x=1,2,detach=yes", "ft.ddp"])
    assert (asked.options, asked.values) == (("x", "detach"), ("1,2", "yes"))
    with pytest.raises(ConfigError, match="-cfg detach=yes: write True or False"):
        check_options(read_command(["-cfg", "x=1,2,detach=yes"]), "local_ft", ["x", "detach"], ["detach"])
    check_options(read_command(["-cfg", "x=yes,detach=true"]), "local_ft", ["x", "detach"], ["detach"])


def test_what_is_not_known_stays_a_traceback() -> None:
    assert explain(ValueError("no"), NOTHING) is None
    assert explain(FileNotFoundError(2, "No such file", "train.py"), NOTHING) is None


def test_output_that_ends_is_one_sentence_and_other_threads_keep_their_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    others: list[str] = []
    hook = thread_hook(lambda args: others.append(args.thread.name))
    for name in ("Thread-2 (print_log_lines)", "Thread-1 (get_logs)", "Thread-3 (else)"):
        error = FileNotFoundError(2, "No such file", "/tmp/log")
        hook(SimpleNamespace(thread=SimpleNamespace(name=name), exc_value=error))
    assert others == ["Thread-3 (else)"]
    said = "torchft_x: no more output of the job is shown ([Errno 2] No such file: '/tmp/log').\n"
    assert capsys.readouterr().err == said


def test_signals_and_slurm() -> None:
    ended = explain(KeyboardInterrupt(), NOTHING)
    assert (ended.code, ended.sentence.split(";")[0]) == (130, "stopped by Ctrl-C")
    refused = explain(subprocess.CalledProcessError(1, ["sbatch", "--parsable"]), SchedulerArguments("slurm", ()))
    assert refused.sentence.startswith("Slurm took no job: sbatch ended with 1")


def test_any_error_of_the_kubernetes_client_has_a_sentence() -> None:
    """A kubeconfig that is no YAML ends in an error of YAML, one that is a folder in an error of Python."""
    space: dict = {"__name__": "kubernetes.config.kube_config"}
    exec("def load(): raise ValueError('while parsing a flow sequence')", space)
    with pytest.raises(ValueError, match="flow") as failed:
        space["load"]()
    ended = explain(failed.value, SchedulerArguments("kubernetes", ()))
    assert ended is not None
    assert ended.code == 2
