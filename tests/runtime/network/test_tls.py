"""TLS under a job's connections: what is sent arrives, nobody else reads it, and who shows no certificate stays out."""

from __future__ import annotations

import datetime
import os
import re
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.log import sparing
from tailrace.protocol.handshake import Refusal
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.network import tls
from tailrace.runtime.network.binding import Binding
from tailrace.runtime.network.link import CONTROL, FRAME, Link, LinkClosed, LinkError
from tailrace.runtime.network.listener import DialFailed, Listener, dial
from tailrace.runtime.network.securelink import SecureLink
from tailrace.runtime.network.tls import AUTHORITY, CERTIFICATE, KEY, Tls, choose, make

TOKEN = b"0123456789abcdef"
OURS, OTHERS = make(), make()


class World:
    """A listener of the job, served by this thread, and who dials it, in others."""

    def __init__(self, shown: Tls | None = OURS) -> None:
        self.loop = EventLoop()
        self.accepted: list[Link] = []
        self.listener = Listener(TOKEN, Binding("127.0.0.1", tls=shown), self.loop, self.accepted.append)
        self.ends: list[Any] = []

    def dial(self, shown: Tls | None = OURS, token: bytes = TOKEN) -> Link:
        with ThreadPoolExecutor(1) as pool:
            dialled = pool.submit(dial, self.listener.address, token, 10, tls=shown)
            dialled.add_done_callback(lambda _: self.loop.wake())
            self.run(dialled.done)
        self.ends.append(dialled.result())
        return dialled.result()

    def pair(self) -> tuple[Link, Link]:
        dialled = self.dial()
        self.run(lambda: self.accepted)
        return dialled, self.accepted[-1]

    def run(self, until: Callable[[], object]) -> None:
        while not until():
            self.loop.poll(1.0)

    def refused(self) -> dict[Refusal, int]:
        return {reason: count for reason, count in self.listener.refused.items() if count}

    def close(self) -> None:
        self.listener.close()
        for end in (*self.accepted, *self.ends):
            end.close()
        self.loop.close()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def exchanged(here: Link, there: Link, messages: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """What arrives there of what is sent here, both sides taking turns."""
    for kind, data in messages:
        here.send(kind, data)
    found: list[tuple[int, bytes]] = []
    while len(found) < len(messages):
        here.flush()
        found += there.readable()
    assert here.flush() and here.queued_bytes == 0
    return found


# What arrives.


@pytest.mark.parametrize("backwards", [False, True])
def test_messages_of_every_size_arrive_in_order(world: World, backwards: bool) -> None:
    dialled, accepted = world.pair()
    assert isinstance(dialled, SecureLink) and isinstance(accepted, SecureLink)
    sizes = [0, 1, 5, 1_000, 16_379, 16_384, 16_385, 100_000, 9 << 20, 3, *[17] * 5_000]
    messages = [(CONTROL if i % 2 else FRAME, os.urandom(size)) for i, size in enumerate(sizes)]
    here, there = (accepted, dialled) if backwards else (dialled, accepted)
    assert exchanged(here, there, messages) == messages
    assert there.bytes_in == here.bytes_out == sum(sizes) + 5 * len(sizes)


@given(sizes=st.lists(st.integers(0, 70_000), min_size=1, max_size=30))
@settings(max_examples=20, deadline=None)
def test_whatever_the_sizes_nothing_is_lost_or_turned_round(sizes: list[int]) -> None:
    world = World()
    try:
        messages = [(FRAME, bytes([i % 251]) * size) for i, size in enumerate(sizes)]
        assert exchanged(*world.pair(), messages) == messages
    finally:
        world.close()


def test_nothing_of_it_can_be_read_on_the_way(world: World) -> None:
    """A relay in the middle keeps what it passes on."""
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as relay:

        def pass_on(source: socket.socket, target: socket.socket) -> None:
            while data := source.recv(65_536):
                seen.extend(data)
                target.sendall(data)

        def serve() -> None:
            left, _ = relay.accept()
            with left, socket.create_connection(world.listener.address) as right:
                back = threading.Thread(target=pass_on, args=(right, left))
                back.start()
                pass_on(left, right)
                right.shutdown(socket.SHUT_RDWR)
                back.join()

        serving = threading.Thread(target=serve)
        serving.start()
        with ThreadPoolExecutor(1) as pool:
            dialled = pool.submit(dial, relay.getsockname(), TOKEN, 10, tls=OURS)
            world.run(dialled.done)
        link = dialled.result()
        world.run(lambda: world.accepted)
        assert exchanged(link, world.accepted[0], [(FRAME, b"a secret" * 1000)]) == [(FRAME, b"a secret" * 1000)]
        link.close()
        serving.join()
    assert len(seen) > 8_000 and b"a secret" not in seen and TOKEN not in seen


def test_an_end_that_closes_is_reported_from_one_that_breaks(world: World) -> None:
    dialled, accepted = world.pair()
    dialled.send(CONTROL, b"last words")
    dialled.flush()
    dialled.close()
    found: list[Any] = []
    with pytest.raises(LinkClosed):
        while True:
            found += accepted.readable()
    assert found == [(CONTROL, b"last words")]


def test_a_socket_that_its_owner_takes_over_goes_on_under_tls(world: World) -> None:
    """The thread with the signs of life does so."""
    dialled, accepted = world.pair()
    sock = dialled.detach()
    world.ends.append(sock)
    assert isinstance(sock, ssl.SSLSocket) and dialled.fileno() == -1
    sock.settimeout(5.0)
    sock.sendall((4).to_bytes(4, "little") + bytes([CONTROL]) + b"beat")
    world.loop.register(accepted, 1, lambda mask: None)
    world.run(lambda: True)
    assert accepted.readable() == [(CONTROL, b"beat")]
    world.loop.unregister(accepted)


# Who stays out.


def test_without_tls_nobody_gets_in(world: World) -> None:
    with pytest.raises(DialFailed):
        world.dial(None)
    assert world.refused() == {Refusal.BAD_TLS: 1}


def test_with_the_certificate_of_another_job_nobody_gets_in(world: World) -> None:
    with pytest.raises(DialFailed, match="do not agree on TLS"):
        world.dial(OTHERS)
    forged = Tls(OTHERS.certificate, OTHERS.key, OURS.certificate)  # believes us, and shows its own
    with pytest.raises(DialFailed):
        world.dial(forged)
    assert world.refused() == {Refusal.BAD_TLS: 2}
    assert world.accepted == []


def test_the_certificate_alone_is_not_enough(world: World) -> None:
    with pytest.raises(DialFailed, match="does not belong to this job"):
        world.dial(token=b"fedcba9876543210")
    assert world.accepted == []


def test_who_expects_tls_says_nothing_to_who_has_none() -> None:
    world = World(None)
    try:
        with pytest.raises(LinkError):
            world.dial(OURS)
        assert world.refused() == {Refusal.BAD_MAGIC: 1}
    finally:
        world.close()


# Where certificates come from.


def test_nothing_is_chosen_where_nothing_is_said() -> None:
    assert choose(None) is choose("") is choose("0") is None


def test_what_is_made_is_of_one_job_only_and_stays_out_of_texts() -> None:
    one, other = choose("1"), choose("1")
    assert one is not None and other is not None and one.key != other.key
    assert one.key not in repr(one) and "PRIVATE KEY" not in repr(one)


@pytest.fixture
def given_folder(tmp_path: Path) -> Path:
    for name, text in ((CERTIFICATE, OURS.certificate), (KEY, OURS.key), (AUTHORITY, OURS.authority)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_certificates_of_a_folder_are_read_by_each_end_for_itself(given_folder: Path) -> None:
    theirs = choose(str(given_folder))
    assert theirs == Tls(folder=str(given_folder)), "no key travels"
    world = World(theirs)
    try:
        assert world.dial(theirs) is not None
    finally:
        world.close()


def test_a_folder_without_a_file_is_refused_with_what_belongs_there(given_folder: Path) -> None:
    (given_folder / KEY).unlink()
    with pytest.raises(ConfigError, match=r"Every machine of the cluster needs cert\.pem, key\.pem and ca\.pem"):
        choose(str(given_folder))


def test_a_key_of_another_certificate_is_refused(given_folder: Path) -> None:
    (given_folder / KEY).write_text(OTHERS.key)
    with pytest.raises(ConfigError, match=f"{re.escape(str(given_folder))}: the certificate.* of no use"):
        choose(str(given_folder))


def test_a_place_that_depends_on_the_working_directory_is_refused() -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        choose("certificates")


def test_without_the_package_that_makes_them_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"pip install \"tailrace\[tls\]\""):
        tls.make()


def test_files_that_are_replaced_count_for_the_next_job(given_folder: Path) -> None:
    """Certificates were read once in the life of a process, and an expired one was shown for ever."""
    theirs = choose(str(given_folder))
    assert theirs is not None
    before = tls.accepting(theirs)
    assert tls.accepting(theirs) is before
    for name, text in ((CERTIFICATE, OTHERS.certificate), (KEY, OTHERS.key), (AUTHORITY, OTHERS.authority)):
        (given_folder / name).write_text(text)
    assert tls.accepting(theirs) is not before
    (given_folder / AUTHORITY).unlink()
    with pytest.raises(ConfigError, match=r"ca\.pem"):
        choose(str(given_folder))


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(given_folder: Path) -> None:
    """Where the driver has a terminal, OpenSSL prompted there, and the program waited."""
    key = serialization.load_pem_private_key(OURS.key.encode(), None)
    kind, form = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    locked = key.private_bytes(form, kind, serialization.BestAvailableEncryption(b"secret"))
    (given_folder / KEY).write_bytes(locked)
    with pytest.raises(ConfigError, match="the key is encrypted"):
        choose(str(given_folder))


def test_files_that_are_no_text_are_refused(given_folder: Path) -> None:
    (given_folder / KEY).write_bytes(b"\x30\x82\xff\xfe")
    with pytest.raises(ConfigError, match="to be in PEM"):
        choose(str(given_folder))


# Certificates that expire, and those that come in their place.


def issued(
    folder: Path, days: float, authority: tuple[Any, Any] | None = None, begins: float = -30, life: float = 3650
) -> tuple[Any, Any]:
    """Puts a certificate that is valid for so many days from now into a folder, with its authority: a new one of ten years,
    or of `life` days, unless one is given. Returns the authority."""
    now = datetime.datetime.now(datetime.UTC)

    def signed(name: str, days: float, by: tuple[Any, Any] | None, begins: float = -30) -> tuple[Any, Any]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject if by is None else by[0].subject)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now + datetime.timedelta(days=begins))
        builder = builder.not_valid_after(now + datetime.timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        signs = key if by is None else by[1]
        above = x509.AuthorityKeyIdentifier.from_issuer_public_key(signs.public_key())
        return builder.add_extension(above, critical=False).sign(signs, hashes.SHA256()), key

    authority = authority or signed("authority", life, None)
    certificate, key = signed("worker", days, authority, begins)
    form, kind, none = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / AUTHORITY).write_bytes(authority[0].public_bytes(form))
    (folder / CERTIFICATE).write_bytes(certificate.public_bytes(form))
    (folder / KEY).write_bytes(key.private_bytes(form, kind, none))
    return authority


@pytest.mark.parametrize(("begins", "ends"), [(-30, -1), (2, 10)], ids=["expired", "not valid yet"])
def test_a_certificate_that_is_not_valid_now_is_refused_where_the_job_starts(
    tmp_path: Path, begins: float, ends: float
) -> None:
    """Each worker failed at its dial."""
    issued(tmp_path, ends, begins=begins)
    with pytest.raises(ConfigError, match=r"no connection can be made .*: certificate (has expired|is not yet valid)"):
        choose(str(tmp_path))


DAYS = st.floats(-1000, 1000).filter(lambda day: abs(day) > 0.01)


@given(st.lists(st.tuples(DAYS, DAYS, DAYS, st.booleans()), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_certificates_that_follow_each_other_are_taken_while_they_and_their_authority_are_valid(
    renewed: list[tuple[float, float, float, bool]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        authority, until = None, 0.0
        for one, other, life, same in renewed:
            begins, ends = sorted((one, other))
            if authority is None or not same:
                authority, until = None, max(life, -29)
            authority = issued(Path(name), ends, authority, begins, until)
            if begins < 0 < ends and until > 0:
                assert choose(name) == Tls(folder=name)
                assert tls.accepting(Tls(folder=name)) and tls.dialing(Tls(folder=name))
            else:
                with pytest.raises(ConfigError, match="no connection can be made with this certificate"):
                    choose(name)


def test_a_certificate_of_another_authority_is_refused_where_the_job_starts(tmp_path: Path) -> None:
    issued(tmp_path, 10)
    (tmp_path / AUTHORITY).write_text(OTHERS.authority)
    with pytest.raises(ConfigError, match=r"no connection can be made with this certificate: .*issuer certificate"):
        choose(str(tmp_path))


def test_a_certificate_or_authority_that_expires_soon_is_warned_of_with_date_and_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issued(tmp_path, 40, life=40)
    assert choose(str(tmp_path)) is not None and not caplog.records
    authority = issued(tmp_path, 20.1, life=25.1)
    assert choose(str(tmp_path)) is not None
    certificate, above = (record.getMessage() for record in caplog.records)
    day = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=20.1)
    assert f"{tmp_path / CERTIFICATE}: the certificate expires at {day:%Y-%m-%d}" in certificate
    assert f"{tmp_path / AUTHORITY}: the authority expires at" in above
    assert "in 20 days" in certificate and "in 25 days" in above
    caplog.clear()
    sparing.forget()
    issued(tmp_path, 0.5, authority)
    assert choose(str(tmp_path)) is not None
    assert "the certificate expires at" in caplog.text and "in 12.0 hours" in caplog.text


def test_an_authority_that_has_expired_is_refused_by_name(tmp_path: Path) -> None:
    issued(tmp_path, 10, life=-2)
    day = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)
    with pytest.raises(ConfigError, match=rf"the authority in ca\.pem has expired at {day:%Y-%m-%d}"):
        choose(str(tmp_path))


def test_an_old_authority_beside_its_renewed_one_does_not_matter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both are in the file while certificates are replaced."""
    issued(tmp_path, 1, life=2)
    old = (tmp_path / AUTHORITY).read_text()
    issued(tmp_path, 300, life=400)
    new = (tmp_path / AUTHORITY).read_text()
    for text in (old + new, new + old):
        (tmp_path / AUTHORITY).write_text(text)
        assert choose(str(tmp_path)) is not None and not caplog.records


def test_a_renewed_certificate_is_taken_by_a_job_that_runs(tmp_path: Path) -> None:
    """Files were read once, when the job started: with the first loss of a worker behind their end it was over."""
    authority = issued(tmp_path, 10)
    theirs = choose(str(tmp_path))
    world = World(theirs)
    try:
        before = world.dial(theirs)
        issued(tmp_path, -1, authority)  # time goes by
        with pytest.raises(DialFailed, match="do not agree on TLS"):
            world.dial(theirs)
        issued(tmp_path, 20, authority)
        after = world.dial(theirs)
        world.run(lambda: len(world.accepted) == 2)
        for end, other in zip((before, after), world.accepted, strict=True):
            assert exchanged(end, other, [(CONTROL, b"still here")]) == [(CONTROL, b"still here")]
    finally:
        world.close()


def test_files_that_do_not_fit_each_other_while_they_are_replaced_stop_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = issued(tmp_path, 10)
    theirs = choose(str(tmp_path))
    world = World(theirs)
    try:
        assert theirs is not None and tls.dialing(theirs) is not None
        key = (tmp_path / KEY).read_text()
        issued(tmp_path, 20, authority)
        new = (tmp_path / KEY).read_text()
        (tmp_path / KEY).write_text(key)  # the certificate is new, and its key is still to come
        assert world.dial(theirs) is not None
        assert "is used until the new files are complete" in caplog.text
        (tmp_path / KEY).unlink()
        assert world.dial(theirs) is not None
        (tmp_path / KEY).write_text(new)
        caplog.clear()
        assert world.dial(theirs) is not None and not caplog.records
    finally:
        world.close()
