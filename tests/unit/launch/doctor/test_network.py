"""Names and the lighthouse, with real sockets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.launch.doctor.findings import check
from tests.unit.rpc.support import lighthouse
from tests.util import free_port, write_secret
from torchft_x.launch.doctor import network
from torchft_x.launch.doctor.network import check_lighthouse, name_finding, reverse_finding
from torchft_x.launch.doctor.runner import Case, Finding


def case(given: str | None = None, run_dir: Path | None = None, **environ: str) -> Case:
    return Case(environ=environ, folder=Path("/"), home=Path("/"), lighthouse=given, run_dir=run_dir)


def poll(given: str | None = None, run_dir: Path | None = None, **environ: str) -> Finding:
    (found,) = check_lighthouse(case(given, run_dir, **environ))
    return found


@pytest.mark.parametrize(
    ("name", "given", "level", "said"),
    [
        ("127.0.0.1", True, "warning", "127.0.0.1 (TORCHFT_X_ADVERTISE_HOST) is 127.0.0.1: good on this machine only"),
        ("127.0.0.1", False, "warning", "because the host name box can't be resolved"),
        ("203.0.113.77", True, "warning", "is no address of this machine"),  # reserved for documentation
        ("no.such.host.invalid", True, "problem", "can't be resolved"),
        ("a" * 70 + ".b", True, "problem", "set TORCHFT_X_ADVERTISE_HOST"),
        ("a..b", True, "problem", "can't be resolved"),
    ],
)
def test_names_that_others_can_not_use(name: str, given: bool, level: str, said: str) -> None:
    check(name_finding(name, name if given else None, "box"), level, said)


def test_none_is_expected() -> None:
    assert poll().level == "ok"
    assert poll(TORCHFT_LIGHTHOUSE="auto").level == "ok"


def test_one_that_runs_is_described() -> None:
    with lighthouse(token="secret") as lh:
        found = poll(lh.address(), TORCHFT_X_TOKEN="secret")
        check(found, "ok", "knows 0 groups", " ms away")
        refused = poll(TORCHFT_LIGHTHOUSE=lh.address(), TORCHFT_X_TOKEN="wrong")
        check(refused, "problem", "TORCHFT_X_TOKEN")
        assert "secret" not in refused.text + found.text


def test_by_the_run_directory_with_its_token(tmp_path: Path) -> None:
    with lighthouse(token="secret") as lh:
        (tmp_path / "lighthouse").write_text(lh.address() + "\n")
        write_secret(tmp_path / "token")
        assert poll(run_dir=tmp_path).level == "ok"
        (tmp_path / "lighthouse").chmod(0o646)
        check(poll(run_dir=tmp_path), "problem", "chmod go-w")


def test_by_the_host_that_the_scheduler_names(tmp_path: Path) -> None:
    with lighthouse() as lh:
        port = lh.address().rpartition(":")[2]
        pod = {"TORCHFT_X_LIGHTHOUSE_AT": f"VC_L_0_HOSTS:{port}"}
        check(poll(run_dir=tmp_path, VC_L_0_HOSTS="127.0.0.1,other", **pod), "ok", f"http://127.0.0.1:{port}")
        local = poll(VC_L_0_HOSTS="127.0.0.1", TORCHX_JOB_ID="local_cwd://a/b", **pod)
        assert "None is expected" in local.text
    assert "is no VARIABLE:PORT" in poll(VC_L_0_HOSTS="h", TORCHFT_X_LIGHTHOUSE_AT="VC_L_0_HOSTS").text


def test_of_a_list_one_that_serves_is_enough() -> None:
    away = f"127.0.0.1:{free_port()}"
    with lighthouse() as serving:
        one, two = check_lighthouse(case(f"{serving.address()},{away}"))
    check(one, "ok", "knows 0 groups")
    check(two, "warning", "it stands by, or does not run")
    check(poll(away), "problem", "is it running")


def test_other_versions_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchft_x.rpc.transport import grpc_options

    with lighthouse() as lh:
        monkeypatch.setattr(network, "__version__", "9.9")
        assert "install the same everywhere" in poll(lh.address()).text
    check(
        network._described("It", {"wire": grpc_options.WIRE + 1, "version": "9.9"}, 0.1),
        "problem",
        f"version {grpc_options.WIRE + 1} of the wire",
    )


def test_another_grpc_server_as_torchfts_own() -> None:
    from concurrent.futures import ThreadPoolExecutor

    import grpc  # not before our own room has made its settings

    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    found = poll(f"127.0.0.1:{port}")
    server.stop(None)
    check(found, "problem", "perhaps torchft's own")


@pytest.mark.parametrize(
    ("given", "environ", "said"),
    [
        ("nowhere", {}, "no valid port"),
        ("no.such.host.invalid:1", {}, "can't be reached"),
        ("127.0.0.1:9", {"TORCHFT_X_TOKEN_FILE": "/nowhere/token"}, "the token can't be read"),
    ],
)
def test_what_can_not_be_asked(given: str, environ: dict[str, str], said: str) -> None:
    check(poll(given, **environ), "problem", said)


def test_something_that_does_not_answer(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "ANSWER", 0.3)
    check(poll(f"127.0.0.1:{port}"), "problem", "takes connections, but does not answer as a lighthouse")


def test_a_slow_reverse_look_up_says_what_it_costs_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(network, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow(where: tuple[str, int], flags: int) -> None:
        now[0] += 2 * network.SLOW_LOOKUP if where[0] == "10.0.0.1" else 0.0

    monkeypatch.setattr(network, "socket", SimpleNamespace(getnameinfo=slow))
    found = reverse_finding(["127.0.0.1", "10.0.0.1"])
    check(found, "warning", "for 10.0.0.1", "/etc/hosts", "RES_OPTIONS='timeout:1 attempts:1'")
    assert reverse_finding(["127.0.0.1"]).level == "ok"
