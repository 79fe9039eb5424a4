"""TLS from the run's token: who verifies whom, and the sentence of each failure."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.util import scaled
from torchft_x import env, net, tls
from torchft_x.errors import ConfigError

TOKEN = "0123456789" * 4
CALL = """
import socket, sys
from torchft_x import tls
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
try:
    sock = tls.client(sock)
    sock.sendall(b"hello")
    print(sock.recv(5).decode())
except OSError as e:
    print(e)
"""


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.TLS, "on")
    monkeypatch.setenv(env.TOKEN, TOKEN)
    monkeypatch.setattr(tls, "_token", None)


def call(**environ: str) -> tuple[str, str]:
    """Return what a client in another process prints, and what this process's server has received, or its error."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", CALL, str(listener.getsockname()[1])]
        client = subprocess.Popen(command, env={**env.everything(), **environ}, stdout=subprocess.PIPE, text=True)
        listener.settimeout(scaled(60))
        sock = tls.server(listener.accept()[0])
        sock.settimeout(scaled(60))
        try:
            received = sock.recv(5).decode()
            sock.sendall(b"yes")
        except OSError as e:
            received = str(e)
        sock.close()
        return client.communicate(timeout=scaled(60))[0].strip(), received


def test_two_processes_with_one_token_verify_each_other() -> None:
    assert call() == ("yes", "hello")


def test_a_process_with_another_token_is_refused() -> None:
    said, received = call(**{env.TOKEN: "another " * 5})
    assert "its certificate is not of this run" in said
    assert received != "hello"


def test_a_process_without_tls_is_refused() -> None:
    said, received = call(**{env.TLS: "off"})
    assert said != "yes"
    assert received == "it does not speak TLS; set TORCHFT_X_TLS for all of the run or for nobody"


def pair(server: tls.Identity, client: tls.Identity, name: str) -> tuple[str, str]:
    """Connect two identities and return what each received, or its error."""
    ours, theirs = socket.socketpair()
    there = server.context(ssl.PROTOCOL_TLS_SERVER).wrap_socket(ours, server_side=True, do_handshake_on_connect=False)
    here = client.context(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(
        theirs, server_hostname=name, do_handshake_on_connect=False
    )
    found = {}

    def exchange(side: str, sock: socket.socket) -> None:
        sock.settimeout(scaled(30))
        try:
            sock.sendall(b"x")
            found[side] = sock.recv(1).decode()
        except OSError as e:
            found[side] = str(e)
        sock.close()

    threads = [threading.Thread(target=exchange, args=one) for one in (("server", there), ("client", here))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found["server"], found["client"]


def test_a_client_with_a_certificate_of_another_run_is_refused() -> None:
    own, other = tls._derived(TOKEN), tls._derived("another " * 5)
    liar = tls.Identity(own.name, other.cert, other.key, own.ca)  # trusts the run, but is not of it
    server, client = pair(own, liar, own.name)
    assert "its certificate is not of this run" in server
    assert client != "x"


def test_another_name_is_refused() -> None:
    own = tls._derived(TOKEN)
    assert pair(own, tls._derived(TOKEN), own.name) == ("x", "x")
    assert "its certificate is not of this run" in pair(own, own, "another.torchft-x.internal")[1]


def test_a_certificate_shows_neither_token_nor_authority() -> None:
    own = tls._derived(TOKEN)
    assert own.key not in own.cert
    assert tls._derived(TOKEN).ca != own.ca  # each process signs the authority's certificate for itself
    assert TOKEN.encode() not in own.cert + own.ca


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("yes", "TORCHFT_X_TLS is 'yes'; write off, on or control"),
        ("on,cert=a,kee=b", "write off, on or control"),
        ("control,cert=a", "missing here: key, ca"),
    ],
)
def test_a_wrong_setting_is_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        tls.Setting.parse(text)


def test_a_token_that_can_be_guessed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="The token has 6 characters; with TLS it needs 22 or more"):
        tls.use_token("secret")
    monkeypatch.setattr(tls, "_token", None)
    monkeypatch.delenv(env.TOKEN)
    with pytest.raises(ConfigError, match="TLS needs the run's token"):
        tls.use_token(None)


def test_a_missing_package_is_a_sentence_before_anything_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.x509", None)
    with pytest.raises(ConfigError, match=r"TLS needs the package cryptography .*pip install cryptography"):
        tls.check("on", None)


def test_addresses_turn_tls_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.TLS, "off")
    assert (tls.is_on(), net.Address("a", 1).url) == (False, "http://a:1")
    monkeypatch.delenv(env.TLS)
    monkeypatch.setenv(env.LIGHTHOUSE, "https://a:1,https://b:1")
    assert (tls.is_on(), net.Address("a", 1).url) == (True, "https://a:1")
    monkeypatch.delenv(env.LIGHTHOUSE)
    assert not tls.is_on()
    env.enable_tls_if_https("https://a:1")
    assert tls.is_on()
    assert net.parse_address("https://a:1") == net.Address("a", 1)


def test_control_leaves_tensors_in_clear_and_never_sends_the_token_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tls.tensor_token(TOKEN) == TOKEN
    monkeypatch.setenv(env.TLS, "control")
    assert tls.is_on()
    assert not tls.is_on(tensors=True)
    derived = tls.tensor_token(TOKEN)
    assert derived is not None
    assert TOKEN not in derived
    assert derived == tls.tensor_token(TOKEN)
    with socket.socket() as sock:
        assert tls.client(sock, tensors=True) is sock


# --- certificates of one's own ----------------------------------------------------------------------------------------


def written(folder: Path, identity: tls.Identity) -> list[str]:
    paths = []
    for name, data in (("cert", identity.cert), ("key", identity.key), ("ca", identity.ca)):
        (folder / name).write_bytes(data)
        paths.append(str(folder / name))
    return paths


def test_certificates_of_ones_own_need_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tls._derived("of a site " * 4)
    monkeypatch.setenv(env.TLS, tls.setting_of("", *written(tmp_path, made)))
    monkeypatch.delenv(env.TOKEN)
    assert tls.identity().name == made.name
    assert call() == ("yes", "hello")


def test_wrong_files_are_sentences(tmp_path: Path) -> None:
    cert, key, ca = written(tmp_path, tls._derived(TOKEN))
    text = tls.setting_of("control", cert, key, ca)
    assert text == f"control,cert={cert},key={key},ca={ca}"
    tls.check(text, None)
    Path(key).write_bytes(tls._derived(TOKEN).key)
    with pytest.raises(ConfigError, match="is not the key of the certificate"):
        tls.check(tls.setting_of("on", cert, key, ca), None)
    with pytest.raises(ConfigError, match="holds no private key without a password in PEM"):
        tls.check(tls.setting_of("on", cert, cert, ca), None)
    with pytest.raises(ConfigError, match=r"no: the file can't be read \(No such file"):
        tls.check(tls.setting_of("on", cert, str(tmp_path / "no"), ca), None)
    with pytest.raises(ConfigError, match="with --tls off"):
        tls.setting_of("off", cert, "", "")
