"""TLS between the processes of a run. All code that opens a TCP connection of ours passes its socket through this module.

With `TORCHFT_X_TLS` every process derives the run's certificate authority from the run's token, and signs itself a
certificate for the run's name. Both sides of a connection show one, and check the other's chain and name; host names
don't matter. Keys exist in memory only. Without the variable, `server` and `client` return their socket unchanged.
"""

from __future__ import annotations

import datetime
import errno
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torchft_x import env
from torchft_x.errors import ConfigError

MIN_TOKEN = 22
"""Least number of characters of a token with TLS, 128 bits in base64: a certificate lets everybody test guesses of it."""
_PIECE = 1 << 18  # bytes of one write: a socket's time-out counts for a whole one
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256; gRPC knows no Ed25519
_FILES = ("cert", "key", "ca")
_BEGIN, _END = datetime.datetime(2000, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59)  # clocks may differ
_OF_ANOTHER = "its certificate is not of this run, so that one of the two has another token or authority"
_NO_TLS = "it does not speak TLS; set TORCHFT_X_TLS for all of the run or for nobody"

_token: str | None = None  # set by `use_token`


@dataclass(frozen=True)
class Setting:
    """Parsed value of TORCHFT_X_TLS."""

    control_only: bool = False
    """Whether heals stay in clear."""
    cert: str = ""
    key: str = ""
    ca: str = ""

    @staticmethod
    def parse(text: str, what: str = env.TLS) -> Setting:
        """Return the setting in ``on``, ``control`` or ``on,cert=PATH,key=PATH,ca=PATH``. Raise `ConfigError`."""
        mode, *words = text.split(",")
        files = {name: path for name, _, path in (word.partition("=") for word in words) if path}
        if mode not in ("on", "control") or files.keys() - set(_FILES) or len(files) != len(words):
            raise ConfigError(
                f"{what} is {text!r}; write off, on or control, and for certificates of your own on,cert=PATH,key=PATH,ca=PATH."
            )
        if files and len(files) < len(_FILES):
            missing = ", ".join(name for name in _FILES if name not in files)
            raise ConfigError(
                f"{what}: certificates of your own need the files cert, key and ca; missing here: {missing}."
            )
        return Setting(mode == "control", **files)


@dataclass(frozen=True)
class Identity:
    """Certificate of this process, and the contexts of its connections. The bytes are PEM."""

    name: str
    """Name in the certificates of all of the run."""
    cert: bytes
    key: bytes
    ca: bytes

    def context(self, side: int, verify: ssl.VerifyMode = ssl.CERT_REQUIRED) -> ssl.SSLContext:
        made = ssl.SSLContext(side)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.verify_mode = verify
        made.sslsocket_class = _Socket
        if side == ssl.PROTOCOL_TLS_SERVER:
            made.num_tickets = 0  # a client takes data that it did not ask for as the end of its connection
        memory = os.memfd_create("torchft_x")  # a context reads its certificate from a file only
        try:
            os.write(memory, self.cert + b"\n" + self.key)
            made.load_cert_chain(f"/proc/self/fd/{memory}")
            made.load_verify_locations(cadata=self.ca.decode())
        finally:
            os.close(memory)
        return made


def use_token(token: str | None) -> str | None:
    """Derive the run's authority from this token, in place of that of the environment, if it is not None. Return it.

    Raise `ConfigError` if this process shall use TLS and can't.
    """
    global _token
    _token = token or _token
    if is_on():
        contexts()
    return token


def server(sock: socket.socket, *, tensors: bool = False) -> socket.socket:
    """Return an accepted connection as it is to be used. The handshake is made by the first read or write.

    `tensors`: whether tensors go through it, which ``control`` leaves in clear. Raise ConnectionAbortedError if the
    client has gone, `ConfigError` if this process can't have a certificate.
    """
    if not is_on(tensors=tensors):
        return sock
    context = contexts()[0]
    try:
        return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
    except OSError as e:
        sock.close()
        raise ConnectionAbortedError(str(e)) from None


def client(sock: socket.socket, *, tensors: bool = False) -> socket.socket:
    """Return a client's socket, connected or not, as it is to be used. See `server`."""
    if not is_on(tensors=tensors):
        return sock
    return contexts()[1].wrap_socket(sock, do_handshake_on_connect=False, server_hostname=identity().name)


def is_on(*, tensors: bool = False) -> bool:
    """Return whether this process uses TLS; for connections with tensors, whether for those, too."""
    text = env.read_tls()
    return bool(text) and not (tensors and Setting.parse(text).control_only)


def tensor_token(token: str | None) -> str | None:
    """Return the token for connections with tensors: one from which the run's own can't be computed if they are in clear."""
    return token if token is None or is_on(tensors=True) or not is_on() else _derive(token, "tensors", 32).hex()


def has_more(sock: socket.socket) -> bool:
    """Return whether a connection holds decrypted bytes, which no selector reports."""
    return isinstance(sock, ssl.SSLSocket) and sock.pending() > 0


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts for our servers, for clients, and for the page, whose clients have no certificate."""
    return _contexts(identity())


def identity() -> Identity:
    """Return this process's certificate. Raise `ConfigError` if it can't have one."""
    return _identity(env.read_tls() or "on", _token or env.read_token())


def check(text: str, token: str | None) -> None:
    """Raise `ConfigError` if a process of this machine can't use this setting. The token may be made later."""
    _import()
    if token is not None or Setting.parse(text, "--tls").cert:
        _identity(text, token)


def setting_of(tls: str, cert: str, key: str, ca: str) -> str:
    """Return the value of TORCHFT_X_TLS for a component's parameters; this process's own if all are empty."""
    files = {"--tls_cert": cert, "--tls_key": key, "--tls_ca": ca}
    for flag, path in files.items():
        if "," in path:
            raise ConfigError(f"{flag} {path!r} has a comma in it, which ends a path here; name another file.")
        if path and tls == "off":
            raise ConfigError(f"{flag} with --tls off: leave one of them out.")
    words = [f"{flag[6:]}={path}" for flag, path in files.items() if path]
    if not tls and not words:
        return env.read_tls()
    text = ",".join([tls or "on", *words])
    if text != "off":
        Setting.parse(text, "--tls")
    return text


def reason(text: str) -> str:
    """Return gRPC's description of a failed connect as a clause for people; '' if it has nothing to do with TLS."""
    if "CERTIFICATE_VERIFY_FAILED" in text or "Hostname Verification Check failed" in text:
        return _OF_ANOTHER
    if "WRONG_VERSION_NUMBER" in text:
        return _NO_TLS
    if "failed to connect" not in text or not ("Socket closed" in text or "Connection reset" in text):
        return ""
    if env.read_tls():
        return "it ends our connections at once, as it does if our certificate is not of its run"
    return "it ends our connections at once, as it does if it speaks TLS and we don't: name it by https:// or set TORCHFT_X_TLS"


class _Socket(ssl.SSLSocket):
    """TLS connection that is used, and fails, like a plain one."""

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        try:
            return super().read(len, buffer)
        except ssl.SSLError as e:
            raise _plain(e) from None

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data, flags)
        except ssl.SSLError as e:
            raise _plain(e) from None

    def sendmsg(self, buffers: Any, *more: Any) -> int:  # type: ignore[override]
        return self.send(buffers[0][:_PIECE])

    def recvmsg_into(self, buffers: Any, *more: Any) -> Any:  # type: ignore[override]
        return self.recv_into(buffers[0]), [], 0, None

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self, how)  # ssl's would send what follows in clear


def _plain(error: ssl.SSLError) -> OSError:
    if isinstance(error, (ssl.SSLWantReadError, ssl.SSLWantWriteError)):
        return BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return ConnectionResetError("connection closed by the other side")
    why = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectionError(f"{_OF_ANOTHER} ({error.verify_message})")
    if why in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return ConnectionError(_NO_TLS)
    if "ALERT" in why and ("CA" in why or "CERTIFICATE" in why):
        return ConnectionError("it refuses our certificate, which is not of its run")
    return ConnectionError(f"TLS has failed ({why})")


@lru_cache(4)
def _contexts(own: Identity) -> tuple[ssl.SSLContext, ssl.SSLContext, ssl.SSLContext]:
    servers = (own.context(ssl.PROTOCOL_TLS_SERVER, verify) for verify in (ssl.CERT_REQUIRED, ssl.CERT_NONE))
    ours, page = servers
    return ours, own.context(ssl.PROTOCOL_TLS_CLIENT), page


@lru_cache(4)
def _identity(text: str, token: str | None) -> Identity:
    setting = Setting.parse(text)
    _import()
    if setting.cert:
        return _given(setting)
    if token is None:
        raise ConfigError(
            f"TLS needs the run's token, from which its certificates are made: set {env.TOKEN} or {env.TOKEN_FILE}, or name "
            "certificates of your own."
        )
    if len(token) < MIN_TOKEN:
        raise ConfigError(
            f"The token has {len(token)} characters; with TLS it needs {MIN_TOKEN} or more, all random, because a certificate "
            "lets everybody test guesses. Leave --token_file out, so that one is made."
        )
    return _derived(token)


def _derived(token: str) -> Identity:
    from cryptography.hazmat.primitives.asymmetric import ec

    number = int.from_bytes(_derive(token, "authority", 48), "big") % (_ORDER - 1) + 1
    name = f"{_derive(token, 'name', 8).hex()}.torchft-x.internal"
    authority, own = ec.derive_private_key(number, ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    cert, ca = (_sign(name, key, authority) for key in (own, authority))
    return Identity(name, cert, _pem(own), ca)


def _derive(token: str, purpose: str, size: int) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(hashes.SHA256(), size, None, f"torchft_x tls {purpose}".encode()).derive(token.encode())


def _sign(name: str, key: Any, authority: Any) -> bytes:
    """Return the certificate for `key` in PEM. That of the authority differs in each process, but not its key and name."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    def common(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    issuer = common(f"authority of {name}")
    root = key is authority
    made = (
        x509.CertificateBuilder(issuer, issuer if root else common(name), key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.BasicConstraints(root, 0 if root else None), critical=True)
    )
    if not root:
        made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    return made.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    return bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))


def _given(setting: Setting) -> Identity:
    """Return the identity in the user's files. Its first DNS name must be in the certificates of all of the run."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    found: dict[str, tuple[bytes, Any]] = {}
    parsers = (
        x509.load_pem_x509_certificate,
        lambda data: serialization.load_pem_private_key(data, None),
        x509.load_pem_x509_certificate,
    )
    for name, parse in zip(_FILES, parsers, strict=True):
        path = getattr(setting, name)
        try:
            with open(path, "rb") as f:
                data = f.read(1 << 20)
            found[name] = data, parse(data)  # type: ignore[operator]
        except OSError as e:
            raise ConfigError(f"--tls_{name} {path}: the file can't be read ({e.strerror}).") from None
        except (ValueError, TypeError):  # TypeError: the key has a password
            kind = "private key without a password" if name == "key" else "certificate"
            raise ConfigError(f"--tls_{name} {path} holds no {kind} in PEM.") from None
    cert, key = found["cert"][1], found["key"][1]
    if cert.public_key() != key.public_key():
        raise ConfigError(f"--tls_key {setting.key} is not the key of the certificate {setting.cert}; name that one.")
    return Identity(_first_name(cert, setting.cert), found["cert"][0], _pem(key), found["ca"][0])


def _first_name(cert: Any, path: str) -> str:
    from cryptography import x509

    names: Sequence[str] = ()
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
            x509.DNSName
        )
    except (x509.ExtensionNotFound, ValueError):
        pass
    if not names:
        raise ConfigError(
            f"--tls_cert {path}: the certificate has no DNS name (subjectAltName); give it one that all of the run's have."
        )
    return str(names[0])


def _import() -> None:
    """Raise `ConfigError` unless the package that makes certificates is here."""
    try:
        import cryptography.x509  # noqa: F401
    except ImportError as e:
        raise ConfigError(f"TLS needs the package cryptography ({e}): pip install cryptography.") from None
