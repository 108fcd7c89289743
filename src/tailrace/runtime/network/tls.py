"""TLS under the connections of a job: both ends show a certificate, and each trusts those of the job's authority only.

The first messages of the two ends inside it are the handshake with the job's token, as without TLS
(`protocol.handshake`). Certificates are made for the job, by the driver, or given, as files that every machine has.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import os
import ssl
import tempfile
import time
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from tailrace.errors import ConfigError
from tailrace.log import log
from tailrace.settings import SETTINGS

SETTING = SETTINGS["tls"].variable
CERTIFICATE, KEY, AUTHORITY = "cert.pem", "key.pem", "ca.pem"
"""The names of the files in a folder of given certificates."""
NAME = "tailrace"
LIFE = datetime.timedelta(days=3650)
"""The life of a certificate that is made: longer than any job."""
SOON = datetime.timedelta(days=30)
"""Time before the end of a folder's certificate, or of its authority, in which it causes a warning."""
_ROUNDS = 4
"""Rounds of a handshake in memory, at most; TLS 1.3 has fewer."""
SKEW = datetime.timedelta(days=1)
"""Difference that the clocks of machines may have, at most."""


@dataclass(frozen=True)
class Tls:
    """The certificate and key of one end, and the authority that it trusts: PEM texts made for this job, or the folder
    that has the files."""

    certificate: str = ""
    key: str = field(default="", repr=False)  # it stays out of every log and error
    authority: str = ""
    folder: str = ""
    """The folder of the three files on each machine; empty if they were made for the job, and travel with its workers."""

    @property
    def source(self) -> str:
        """The origin of the certificates, as part of a file's name."""
        return hashlib.sha256(self.folder.encode()).hexdigest()[:16] if self.folder else "made"

    def texts(self) -> tuple[str, str, str]:
        """Certificate, key and authority, as they are now. Raises `ConfigError` if this machine does not have them."""
        if not self.folder:
            return self.certificate, self.key, self.authority
        try:
            certificate, key, authority = (
                Path(self.folder, name).read_text() for name in (CERTIFICATE, KEY, AUTHORITY)
            )
        except UnicodeDecodeError as error:
            raise ConfigError(f"{SETTING}={self.folder}: the files are to be in PEM, which is text: {error}") from None
        except OSError as error:
            raise ConfigError(
                f"{SETTING}={self.folder}: {error.strerror or error}: {error.filename}. Every machine of the cluster needs "
                f"{CERTIFICATE}, {KEY} and {AUTHORITY} in this folder, readable by the user that runs there"
            ) from error
        return certificate, key, authority


def choose(setting: str | None) -> Tls | None:
    """The TLS of a job by the value of `TAILRACE_TLS`: none, `1` for certificates that are made for the job, or a folder
    that has some. Raises `ConfigError`."""
    if setting in (None, "", "0"):
        return None
    if setting == "1":
        return make()
    if not os.path.isabs(setting):
        raise ConfigError(
            f"{SETTING}={setting}: expected 1, or the absolute path of a folder with {CERTIFICATE}, {KEY} and {AUTHORITY}"
        )
    given = Tls(folder=setting)
    for file, what, until in _ends(given):  # what is wrong with them is reported here, and not by the first worker
        left = until - time.time()
        if left < SOON.total_seconds():
            log.warning(
                "%s: the %s expires at %s, in %s; put a new one there before (on every machine): it is used for all "
                "connections that are made from then on, also by jobs that run",
                Path(setting, file),
                what,
                _date(until),
                f"{left / 86_400:.0f} days" if left > 172_800 else f"{left / 3_600:.1f} hours",
            )
    return given


def _date(time: float) -> str:
    return datetime.datetime.fromtimestamp(time, datetime.UTC).isoformat(timespec="minutes")


def _ends(tls: Tls) -> list[tuple[str, str, float]]:
    """The time at which each certificate expires on which connections depend, in seconds since 1970, with its file: that of
    the folder, and those above it up to the authority. Raises `ConfigError` if no connection can be made with them."""
    certificate, _, authority = tls.texts()
    at, trusted = _own_certificate(tls), _authorities(authority)
    above = [(AUTHORITY, "authority", one) for one in trusted]
    above += [(CERTIFICATE, "authority", one) for one in _authorities(certificate)]
    ends = [(CERTIFICATE, "certificate", _end(at))]
    while at["subject"] != at["issuer"] and (found := [one for one in above if one[2]["subject"] == at["issuer"]]):
        file, what, at = max(found, key=lambda one: _end(one[2]))  # a renewed one has the name of the one before
        ends.append((file, what, _end(at)))
        if file == AUTHORITY:
            break
        above.remove((file, what, at))
    return ends


def _authorities(text: str) -> list[Any]:
    """The certificates of authorities in a PEM text."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=text)
    return context.get_ca_certs()


def _end(certificate: Any) -> float:
    return float(ssl.cert_time_to_seconds(certificate["notAfter"]))


def _own_certificate(tls: Tls) -> Any:
    """The fields of the certificate. A handshake in memory shows that both ends trust each other. Raises `ConfigError` if
    they do not."""
    texts, to_server, to_client = tls.texts(), ssl.MemoryBIO(), ssl.MemoryBIO()
    server = _context(*texts, tls.folder, True).wrap_bio(to_server, to_client, server_side=True)
    client = _context(*texts, tls.folder, False).wrap_bio(to_client, to_server)
    waiting = [client, server]
    try:
        for _ in range(_ROUNDS):
            for end in tuple(waiting):
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
                    waiting.remove(end)
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", None) or error
        last = max(map(_end, _authorities(texts[2])), default=inf)
        if last < time.time():
            why = f"{why}: the authority in {AUTHORITY} has expired at {_date(last)}"
        raise ConfigError(
            f"{SETTING}={tls.folder}: no connection can be made with this certificate: {why}. {CERTIFICATE} has to be "
            f"signed by the authority in {AUTHORITY}, for both ends of a connection, and both have to be valid now"
        ) from error
    return client.getpeercert()


def make() -> Tls:
    """A new key, and a certificate that is its own authority. Raises `ConfigError` if they cannot be made."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigError(
            f"{SETTING}=1: certificates are made with the package cryptography, which is not installed: "
            f'pip install "tailrace[tls]", or give a folder that has some'
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
        .decode()
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return Tls(certificate, text, certificate)


def accepting(tls: Tls) -> ssl.SSLContext:
    """The context of the end that listens, with the files as they are now. Raises `ConfigError` if they were never of
    use."""
    return _newest(tls, True)


def for_browsers(setting: str | None) -> ssl.SSLContext | None:
    """The context of a page for browsers, which show no certificate of their own: with those of the folder that
    `TAILRACE_TLS` names. None where it names none: no browser trusts certificates that are made for a job. Raises
    `ConfigError`."""
    if setting in (None, "", "0", "1"):
        return None
    tls = choose(setting)
    assert tls is not None
    context = _context(*tls.texts(), tls.folder, True)
    context.verify_mode, context.minimum_version = ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    return context


def dialing(tls: Tls) -> ssl.SSLContext:
    """The context of the end that dials, with the files as they are now. Raises `ConfigError` if they were never of use."""
    return _newest(tls, False)


_last: dict[tuple[str, bool], ssl.SSLContext] = {}
"""The last usable context for each folder and end: its files are replaced one after the other."""


def _newest(tls: Tls, server: bool) -> ssl.SSLContext:
    place = (tls.folder, server)
    try:
        context = _context(*tls.texts(), tls.folder, server)
    except ConfigError as error:
        if not tls.folder or place not in _last:
            raise
        log.warning("the certificate that was read last is used until the new files are complete: %s", error)
        return _last[place]
    if tls.folder:
        _last[place] = context
    return context


@functools.lru_cache(maxsize=8)
def _context(certificate: str, key: str, authority: str, folder: str, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # machines have many names: the authority vouches for the job, not for a host
    context.verify_mode = ssl.CERT_REQUIRED
    if server:
        context.num_tickets = 0  # no peer resumes a connection
    try:
        context.load_verify_locations(cadata=authority)
        with tempfile.TemporaryDirectory(prefix="tailrace-") as own:  # only this user can read it; ssl takes files only
            file = Path(own, "both.pem")
            file.write_text(f"{certificate}\n{key}")
            context.load_cert_chain(file, password=_no_password)
    except (ssl.SSLError, ValueError, OSError) as error:
        where = f"{folder}: " if folder else ""
        raise ConfigError(
            f"{SETTING}: {where}the certificate, its key or the authority is of no use: {error}"
        ) from error
    return context


def _no_password() -> str:
    """Raises `ValueError` for an encrypted key: OpenSSL would request a password at the keyboard, and a worker has none."""
    raise ValueError("the key is encrypted, and has to be without a password")
