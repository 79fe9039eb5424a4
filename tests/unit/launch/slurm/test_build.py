"""From an app and -cfg to batch scripts: what is asked of Slurm, what arrives at a process, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from torchx.specs import AppDef, Role, resource

from tests.unit.launch.slurm.made import SCRIPT, directives, request, spec
from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.launch.job.build import ft_app
from torchft_x.launch.job.job import ExtraRole
from torchft_x.launch.plugin.slurm import create_scheduler
from torchft_x.launch.slurm import options
from torchft_x.launch.slurm.options import seconds
from torchft_x.launch.slurm.script import FENCE, array_range, render


def test_groups_that_differ_are_jobs_of_their_own_and_those_alike_are_one_array() -> None:
    app = ft_app(str(SCRIPT), replicas=4, workers_by_group=[1, 2, 1, 4], run_dir="/shared/run")
    found = request(app)
    assert found.roles[0].arrays == ([0, 2], [1], [3])
    found_arrays = [line for line in directives(str(found)) if line.startswith("--array")]
    assert found_arrays == ["--array=0,2", "--array=1", "--array=3"]


def test_tls_reaches_every_process() -> None:
    app = ft_app(
        str(SCRIPT), replicas=3, run_dir="/shared/run", tls="on", extra_roles=[ExtraRole("evaluator", ["serve"])]
    )
    found = [role.spec for role in request(app).roles]
    assert [spec.role for spec in found] == ["trainer", "evaluator"]
    assert {spec.env[env.TLS] for spec in found} == {found[0].lighthouse_env[env.TLS]} == {"on"}
    assert all(f"\nexport {env.TLS}=on\n" in render(spec) for spec in found)  # also for the watcher


def test_every_option_becomes_a_word_of_sbatch() -> None:
    cfg = {
        "partition": "p", "account": "a", "qos": "q", "time": "1:00:00", "constraint": "c", "reservation": "r",
        "gres": "gpu:h100:8", "exclude": "n9", "signal": "B:USR1@60", "mail-user": "m",
        "mail-type": "END", "exclusive": True, "sbatch_args": "--nice 100 --licenses=x",
    }  # fmt: skip
    found = request(**cfg, array_limit=2, comment="a # b", dependency="afterok:1")
    (trainer,) = (role.spec for role in found.roles)
    assert trainer.command[trainer.command.index("--") - 4 :][:4] == ("--no_restart_code", "1", "--fence", FENCE)
    said = set(trainer.options)
    assert {f"--{name}={value}" for name, value in cfg.items() if name not in ("exclusive", "sbatch_args")} <= said
    assert {"--exclusive", "--nice=100", "--licenses=x", "--dependency=afterok:1"} <= said
    assert "--array=0-2%2" in directives(str(found))
    assert '--comment="torchft_x:ddp-x:TICKET:/shared/run a # b"' in directives(str(found))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", 180), ("1:30", 90), ("4:00:00", 14400), ("1-0", 86400), ("1-2:30", 95400), ("0-0:0:5", 5), ("0", None),
        ("UNLIMITED", None), ("", None), ("1:2:3:4", None),
    ],
)  # fmt: skip
def test_times_are_read_as_sbatch_reads_them(text: str, expected: int | None) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(("time", "signal"), [("2:59", "B:USR1@60"), ("2", "B:USR1"), ("2", "B:USR1@1")])
def test_a_limit_that_comes_before_a_part_gets_anywhere_is_refused(time: str, signal: str) -> None:
    """A group would be queued again as soon as it runs."""
    with pytest.raises(ConfigError, match=f"-cfg time={time},signal={signal}: .*give at least 3 min"):
        request(time=time, signal=signal)
    for enough, other in (("4", "B:USR1@60"), ("1", "TERM@30"), ("UNLIMITED", "B:USR1@60"), ("", "B:USR1@60")):
        assert request(time=enough, signal=other).roles


@pytest.mark.parametrize("time", ["", "UNLIMITED", "5:00", "4:59"])
def test_groups_are_told_before_the_limit(time: str) -> None:
    """At the limit srun is told as well, and kills them before they have saved."""
    (trainer,) = (role.spec.options for role in request(time=time).roles)
    assert [word for word in trainer if word.startswith("--signal")] == ([] if time == "4:59" else ["--signal=TERM@30"])
    own = request(time=time, sbatch_args="--signal=B:USR1@120").roles[0].spec.options
    assert [word for word in own if word.startswith("--signal")] == ["--signal=B:USR1@120"]


def test_a_group_has_all_of_the_memory_of_nodes_that_are_its_own() -> None:
    app = ft_app(str(SCRIPT), replicas=1, memMB=4096, run_dir="/shared/run")
    assert "--mem=4096M" in directives(str(request(app)))
    alone = directives(str(request(app, exclusive=True, nodelist="n[1-3]")))
    assert {"--mem=0", "--nodelist=n[1-3]"} <= set(alone)


def test_containers_are_asked_of_pyxis() -> None:
    found = request(**{"container-image": "reg#a", "container-mounts": "/d:/d"}).roles[0].text
    assert "--container-image=reg#a" in found.replace("'", "")
    assert "--container-mounts=/d:/d" in found


@pytest.mark.parametrize(
    ("cfg", "said"),
    [
        ({"nodelist": "n[1-3]"}, "each group would ask for all of these nodes"),
        ({"array_limit": 0}, "at least one group"),
        ({"start_deadline": 0}, "start_deadline=0: it is a number of seconds"),
        ({"container-mounts": "/d:/d"}, "container-image"),
        ({"sbatch_args": "--array=1"}, "slurm_ft's own"),
        ({"sbatch_args": "-J x"}, "slurm_ft's own"),
        ({"sbatch_args": "word"}, "no option of sbatch"),
        ({"sbatch_args": "'"}, "sbatch_args"),
        ({"qos": "a\nb"}, "has a line break"),
        ({"comment": 'a "b" c'}, "quotation mark"),
    ],
)
def test_mistakes_are_sentences(cfg: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        str(request(**cfg))


def test_a_program_that_is_not_ours() -> None:
    def other(*args: str, replicas: int = 2, **environ: str) -> AppDef:
        role = Role(
            name="main", image="", entrypoint="prog", args=[*args], env=environ, num_replicas=replicas,
            resource=resource(cpu=1, gpu=0, memMB=1),
        )  # fmt: skip
        return AppDef(name="some", roles=[role])

    found = request(other("--id", "${replica_id}"), partition="p")
    assert found.roles[0].arrays == ([0, 1],)
    assert 'exec prog --id "$replica"' in found.roles[0].text
    with pytest.raises(ConfigError, match="-s slurm, or a component of torchft_x"):
        request(other("--master", "${rank0_env}"))
    with pytest.raises(ConfigError, match="--token_file"):
        request(other(**{env.TOKEN: "secret"}))


@pytest.mark.parametrize(
    "changed",
    [
        {"env": {"A-B": "1"}},
        {"env": {"A": "a\0b"}},
        {"run_dir": "/with space"},
        {"folder": "/100%"},
        {"command": ("a\nTORCHFT_X_TASK\nrm -rf /",)},
    ],
)
def test_what_no_script_can_hold_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        render(spec(**changed))


def test_ranges() -> None:
    assert array_range([0, 1, 2, 7, 4, 5]) == "0-2,4-5,7"
    assert array_range([3], 2) == "3%2"


def test_torchx_knows_every_option_and_has_its_help() -> None:
    opts = dict(create_scheduler("here").run_opts())
    assert set(options.OPTIONS) <= set(opts)
    assert all(option.help for option in opts.values())
