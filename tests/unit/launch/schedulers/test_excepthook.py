"""The last sentence of `torchx run`: pure, and by TorchX's real command on both lines."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from torchft_x.errors import ConfigError
from torchft_x.launch.schedulers.excepthook import check_options, explain, read_command, thread_hook


@pytest.mark.parametrize(
    ("words", "scheduler", "options"),
    [
        (["ft.ddp", "--script", "a.py"], None, {}),
        (["-s", "slurm", "-cfg", "partion=gpu,time=1", "ft.ddp"], "slurm", {"partion": "gpu", "time": "1"}),
        (["--scheduler=slurm", "--scheduler_args", "a=1,2,b=3", "c.py:x"], "slurm", {"a": "1,2", "b": "3"}),
        (["-cfg", "a=1,2", "c.py:x"], None, {"a": "1,2"}),
        (["--dryrun", "--workspace", "", "ft.ddp", "-s", "slurm"], None, {}),  # the script's own
        (["-s"], None, {}),  # TorchX says what is wrong with it
    ],
)
def test_what_the_command_line_says_of_the_scheduler(
    words: list[str], scheduler: str | None, options: dict[str, str]
) -> None:
    assert read_command(words) == (scheduler, options)


def test_a_slip_in_a_schedulers_option_is_named() -> None:
    known = {"partition": str, "time": str, "detach": bool}
    with pytest.raises(ConfigError, match=r"-cfg partion=\.\.\.: the scheduler slurm .*; did you mean partition\?"):
        check_options("slurm", {"time": "1", "partion": "a"}, known)
    with pytest.raises(ConfigError, match="it has detach, partition, time"):
        check_options("slurm", {"zzz": "1"}, known)
    with pytest.raises(ConfigError, match="-cfg detach=yes: write True or False"):
        check_options("slurm", {"time": "1,2", "detach": "yes"}, known)
    check_options("slurm", {"time": "yes", "detach": "true"}, known)


def test_what_is_not_known_stays_a_traceback() -> None:
    assert explain(ValueError("no"), None) is None
    assert explain(FileNotFoundError(2, "No such file", "train.py"), None) is None


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
    ended = explain(KeyboardInterrupt(), None)
    assert ended == ("stopped by Ctrl-C; a job on this machine has ended with it.", 130)
    refused = explain(subprocess.CalledProcessError(1, ["sbatch", "--parsable"]), "slurm")
    assert refused[0].startswith("Slurm took no job: sbatch ended with 1")


def test_any_error_of_the_kubernetes_client_has_a_sentence() -> None:
    """A kubeconfig that is no YAML ends in an error of YAML, one that is a folder in an error of Python."""
    space: dict = {"__name__": "kubernetes.config.kube_config"}
    exec("def load(): raise ValueError('while parsing a flow sequence')", space)
    with pytest.raises(ValueError, match="flow") as failed:
        space["load"]()
    ended = explain(failed.value, "kubernetes")
    assert ended is not None
    assert ended[1] == 2
