"""Finding the lighthouse: given, by the file in the run directory, or by the host that the scheduler names."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.util import write_secret
from torchft_x import env
from torchft_x.errors import AddressError, ConfigError
from torchft_x.launch.supervisor.locate import Locator, first_host
from torchft_x.net import Address


@pytest.fixture
def dead() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def by_host(port: int, host: str = "127.0.0.1", **more: str) -> dict[str, str]:
    """The environment of a role whose scheduler names the lighthouse's host."""
    return {env.LIGHTHOUSE_AT: f"VC_LIGHTHOUSE_0_HOSTS:{port}", **more} | (
        {"VC_LIGHTHOUSE_0_HOSTS": host} if host else {}
    )


def test_by_the_file_with_the_token_beside_it(tmp_path: Path, port: int, dead: int) -> None:
    locator = Locator(tmp_path, None, {})
    assert locator.poll() is None
    assert str(tmp_path / "lighthouse") in locator.missing
    write_secret(tmp_path / "token")
    (tmp_path / "lighthouse").write_text(f"http://127.0.0.1:{dead}")  # of an earlier run
    assert locator.poll() is None
    assert "refused" in locator.missing
    (tmp_path / "lighthouse").write_text(f"http://127.0.0.1:{port}\n")
    found = locator.poll()
    assert found.url == f"http://127.0.0.1:{port}"
    assert (found.token, found.token_file) == ("secret", str(tmp_path / "token"))
    assert "secret" not in repr(found)


def test_a_given_address_and_the_tokens_of_the_environment(tmp_path: Path, port: int) -> None:
    """T4: with TORCHFT_LIGHTHOUSE the run's token was left out, and the lighthouse said that we have none."""
    address = f"http://127.0.0.1:{port}"
    assert Locator(tmp_path, address, {}).poll().token is None
    write_secret(tmp_path / "token")
    found = Locator(tmp_path, address, {}).poll()
    assert (found.token, found.token_file) == ("secret", str(tmp_path / "token"))
    found = Locator(tmp_path, address, {"TORCHFT_X_TOKEN": "t"}).poll()
    assert (found.token, found.token_file) == ("t", None)


def test_an_address_that_others_may_have_written_gets_no_token(tmp_path: Path, port: int) -> None:
    """T1: a stranger's address in the run directory was given the run's token."""
    write_secret(tmp_path / "token")
    (tmp_path / "lighthouse").write_text(f"http://127.0.0.1:{port}")
    locator = Locator(tmp_path, None, {})
    assert locator.poll().token == "secret"
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match=f"{tmp_path} may be written by other users"):
        locator.poll()


def test_of_a_list_one_that_answers_is_enough(port: int, dead: int) -> None:
    """The host of one of them may be gone; the group goes on with all."""
    given = f"http://no.such.host.invalid:1,127.0.0.1:{dead},127.0.0.1:{port}"
    found = Locator(None, given, {}).poll()
    assert found.url == f"http://no.such.host.invalid:1,http://127.0.0.1:{dead},http://127.0.0.1:{port}"
    locator = Locator(None, f"127.0.0.1:{dead},127.0.0.1:1", {})
    assert locator.poll() is None
    assert locator.missing.count("Connection refused") == 2


def test_nothing_else_is_looked_at_when_one_is_given(tmp_path: Path, port: int, dead: int) -> None:
    (tmp_path / "lighthouse").write_text(f"http://127.0.0.1:{port}")
    locator = Locator(tmp_path, f"http://127.0.0.1:{dead}", by_host(port, TORCHFT_X_TOKEN="t"))
    assert locator.poll() is None
    assert locator.missing == f"the lighthouse (http://127.0.0.1:{dead}: Connection refused)"


@pytest.mark.parametrize(
    "address", ["nowhere", "http://no.such.host.invalid:1", "http://h:1,nowhere", "http://127.0.0.1:1,"]
)
def test_a_wrong_address_fails_at_once_and_names_the_variable(address: str) -> None:
    with pytest.raises(AddressError, match="TORCHFT_LIGHTHOUSE") as caught:
        Locator(None, address, {})
    assert address.split(",")[-1] in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "sentence"), [({}, "--run_dir"), ({env.LIGHTHOUSE_AT: "HOST"}, "'HOST' is no VARIABLE:PORT")]
)
def test_nothing_to_go_by(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Locator(None, None, environ)


def test_by_the_host_the_scheduler_names(port: int) -> None:
    """No run directory is needed for that."""
    found = Locator(None, None, by_host(port, "127.0.0.1,second.host", TORCHFT_X_TOKEN="t")).poll()
    assert (found.addresses, found.token) == ((Address("127.0.0.1", port),), "t")


def test_the_token_may_be_in_the_shared_directory(tmp_path: Path, port: int) -> None:
    locator = Locator(tmp_path, None, by_host(port))
    assert locator.poll() is None
    for where in (env.TOKEN, env.TOKEN_FILE, str(tmp_path / "token"), f"127.0.0.1:{port}"):
        assert where in locator.missing
    write_secret(tmp_path / "token")
    found = locator.poll()
    assert (found.token, found.token_file) == ("secret", str(tmp_path / "token"))


def test_the_file_comes_first_unless_it_is_of_an_earlier_run(tmp_path: Path, port: int, dead: int) -> None:
    write_secret(tmp_path / "token")
    with socket.create_server(("127.0.0.1", 0)) as other:
        for written, found in ((other.getsockname()[1],) * 2, (dead, port)):
            (tmp_path / "lighthouse").write_text(f"127.0.0.1:{written}")
            assert Locator(tmp_path, None, by_host(port)).poll().addresses[0].port == found


def test_what_is_missing_names_all_that_was_tried(tmp_path: Path, dead: int) -> None:
    locator = Locator(tmp_path, None, by_host(dead, TORCHFT_X_TOKEN="t"))
    assert locator.poll() is None
    assert locator.missing == (
        f"the lighthouse (no address in {tmp_path}/lighthouse yet; "
        f"http://127.0.0.1:{dead} by VC_LIGHTHOUSE_0_HOSTS: Connection refused)"
    )
    unset = Locator(tmp_path, None, by_host(dead, ""))
    assert unset.poll() is None
    assert "no host in the variable VC_LIGHTHOUSE_0_HOSTS" in unset.missing


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 70, "a..b"])
def test_a_host_that_is_not_known_yet_is_waited_for(host: str) -> None:
    locator = Locator(None, None, by_host(1, host, TORCHFT_X_TOKEN="t"))
    assert locator.poll() is None
    assert host in locator.missing


def test_a_local_job_has_no_port_of_its_own(tmp_path: Path, port: int) -> None:
    write_secret(tmp_path / "token")
    assert Locator(tmp_path, None, by_host(port, TORCHX_JOB_ID="local_cwd://torchx/x")).poll() is None


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("", ""),
        ("n1", "n1"),
        ("10.0.0.7", "10.0.0.7"),
        ("fd00::7", "fd00::7"),
        ("job-lighthouse-0-0.job", "job-lighthouse-0-0.job"),
        ("a.job,b.job", "a.job"),
    ],
)
def test_the_first_host_of_a_list(text: str, host: str) -> None:
    assert first_host(text) == host
