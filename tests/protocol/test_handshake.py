"""Two halves, and everything that may sit between them."""

import contextlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.handshake import (
    MAGIC,
    NONCE_SIZE,
    TOKEN_MIN,
    VERSION,
    Acceptor,
    Dialer,
    HandshakeRefused,
    Refusal,
)

TOKEN = b"the token of the job, 32 bytes.."
OTHER = b"the token of another job, alike."
NONCE_D = bytes(range(32))
NONCE_A = bytes(range(100, 132))

HELLO = MAGIC + VERSION.to_bytes(2, "little") + NONCE_D


def pair() -> tuple[Dialer, Acceptor]:
    return Dialer(TOKEN, NONCE_D), Acceptor(TOKEN, NONCE_A)


def turns() -> list[bytes]:
    """The four messages of a good handshake: hello, answer, proof, OK."""
    dialer, acceptor = pair()
    data = [dialer.outgoing()]
    acceptor.receive(data[-1])
    data.append(acceptor.outgoing())
    dialer.receive(data[-1])
    data.append(dialer.outgoing())
    acceptor.receive(data[-1])
    data.append(acceptor.outgoing())
    dialer.receive(data[-1])
    assert dialer.done and acceptor.done
    return data


def refusal(half: Dialer | Acceptor, data: bytes) -> Refusal:
    with pytest.raises(HandshakeRefused) as caught:
        half.receive(data)
    assert not half.done
    assert half.outgoing() == b""
    assert half.leftover == b""
    assert half.expected_bytes == 0
    with pytest.raises(HandshakeRefused) as again:  # a refused half stays refused
        half.receive(b"")
    assert again.value.reason is caught.value.reason
    return caught.value.reason


def waiting_for_answer() -> Dialer:
    dialer, _ = pair()
    dialer.outgoing()
    return dialer


def waiting_for_ok() -> Dialer:
    dialer = waiting_for_answer()
    dialer.receive(turns()[1])
    dialer.outgoing()
    return dialer


def waiting_for_proof() -> Acceptor:
    _, acceptor = pair()
    acceptor.receive(turns()[0])
    acceptor.outgoing()
    return acceptor


# the good path


def test_the_bytes_on_the_wire_are_frozen() -> None:
    hello, answer, proof, ok = turns()
    assert hello == HELLO == b"TAILRACE\x01\x00" + NONCE_D
    assert answer[:NONCE_SIZE] == NONCE_A
    assert answer[NONCE_SIZE:].hex() == "a31c31900439823cdd57e553f39cdabaef5b5aa1d73ecea345012bf5b67c7c3a"
    assert proof.hex() == "54a9d330caff37f83143806a4cb808e501644c869da5840e083e884c358d0b48"
    assert ok == b"\x06"


def test_the_token_is_never_sent() -> None:
    data = b"".join(turns())
    assert not any(TOKEN[i : i + 4] in data for i in range(len(TOKEN) - 3))


def test_what_is_wanted_is_what_is_due() -> None:
    dialer, acceptor = pair()
    assert (dialer.expected_bytes, acceptor.expected_bytes) == (0, len(HELLO))  # first the dialer has to speak
    hello = dialer.outgoing()
    assert dialer.expected_bytes == 64
    acceptor.receive(hello[:40])
    assert acceptor.expected_bytes == 2
    acceptor.receive(hello[40:])
    assert acceptor.expected_bytes == 0
    dialer.receive(acceptor.outgoing())
    assert (dialer.expected_bytes, acceptor.expected_bytes) == (0, 32)
    acceptor.receive(dialer.outgoing())
    assert (dialer.expected_bytes, acceptor.expected_bytes) == (1, 0)
    dialer.receive(acceptor.outgoing())
    assert (dialer.expected_bytes, acceptor.expected_bytes) == (0, 0)


@pytest.mark.parametrize("turn", range(4))
def test_every_split_of_every_message(turn: int) -> None:
    message = turns()[turn]
    for cut in range(len(message) + 1):
        dialer, acceptor = pair()
        for now in range(4):
            sender, receiver = (dialer, acceptor) if now % 2 == 0 else (acceptor, dialer)
            out = sender.outgoing()
            for piece in (out[:cut], out[cut:]) if now == turn else (out,):
                receiver.receive(piece)
        assert dialer.done and acceptor.done
        assert dialer.leftover == acceptor.leftover == b""


@given(st.lists(st.integers(1, 70), max_size=40))
def test_any_split_of_all_messages(sizes: list[int]) -> None:
    dialer, acceptor = pair()
    cuts = iter(sizes)
    for now in range(4):
        sender, receiver = (dialer, acceptor) if now % 2 == 0 else (acceptor, dialer)
        out = sender.outgoing()
        while out:
            size = next(cuts, len(out))
            receiver.receive(out[:size])
            out = out[size:]
    assert dialer.done and acceptor.done


def test_the_acceptor_may_speak_right_behind_its_ok() -> None:
    dialer = waiting_for_ok()
    dialer.receive(turns()[3] + b"first words")
    assert dialer.done
    dialer.receive(b", and more")
    assert dialer.leftover == b"first words, and more"


def test_what_follows_the_handshake_is_left_over() -> None:
    acceptor = waiting_for_proof()
    acceptor.receive(turns()[2])
    assert acceptor.outgoing() == turns()[3]
    acceptor.receive(b"first words")
    assert acceptor.done
    assert acceptor.leftover == b"first words"


# who does not know the token


def test_a_dialer_with_another_token_is_refused() -> None:
    impostor = Dialer(OTHER, NONCE_D)
    acceptor = Acceptor(TOKEN, NONCE_A)
    acceptor.receive(impostor.outgoing())
    # It cannot even know whether this answer is genuine. Let it go on nevertheless, with the best that it can make.
    accomplice = Acceptor(OTHER, NONCE_A)
    accomplice.receive(HELLO)
    acceptor.outgoing()
    impostor.receive(accomplice.outgoing())
    assert refusal(acceptor, impostor.outgoing()) is Refusal.BAD_PROOF


def test_an_acceptor_with_another_token_is_refused() -> None:
    dialer = waiting_for_answer()
    impostor = Acceptor(OTHER, NONCE_A)
    impostor.receive(HELLO)
    assert refusal(dialer, impostor.outgoing()) is Refusal.BAD_PROOF


def test_another_protocol_is_refused_at_its_first_byte() -> None:
    for data in (b"GET / HTTP/1.1\r\nHost: driver:7077\r\nUser-Agent: curl\r\n\r\n", b"S", b"TAILRACx", bytes(42)):
        _, acceptor = pair()
        assert refusal(acceptor, data) is Refusal.BAD_MAGIC


def test_another_version_is_refused_whatever_its_size() -> None:
    for tail in (b"", NONCE_D, NONCE_D * 5):
        _, acceptor = pair()
        assert refusal(acceptor, MAGIC + (VERSION + 1).to_bytes(2, "little") + tail) is Refusal.BAD_VERSION


# who has listened


def test_a_recorded_dialer_is_refused() -> None:
    hello, _, proof, _ = turns()
    acceptor = Acceptor(TOKEN, bytes(32))  # same job, new connection: new nonce
    acceptor.receive(hello)
    acceptor.outgoing()
    assert refusal(acceptor, proof) is Refusal.BAD_PROOF


def test_a_recorded_acceptor_is_refused() -> None:
    dialer = Dialer(TOKEN, bytes(32))
    dialer.outgoing()
    assert refusal(dialer, turns()[1]) is Refusal.BAD_PROOF


def test_a_peer_that_shows_our_nonce_is_refused() -> None:
    _, acceptor = pair()
    assert refusal(acceptor, MAGIC + VERSION.to_bytes(2, "little") + NONCE_A) is Refusal.BAD_PROOF
    # Made by somebody who knows the token, and refused all the same.
    genuine = hmac.digest(TOKEN, b"accept" + NONCE_D + NONCE_D + VERSION.to_bytes(2, "little"), "sha256")
    assert refusal(waiting_for_answer(), NONCE_D + genuine) is Refusal.BAD_PROOF


def test_an_acceptors_proof_is_no_dialers_proof() -> None:
    """The attacker lets a second acceptor of the job make the proof that the first one requires."""
    first, second = Acceptor(TOKEN, NONCE_A), Acceptor(TOKEN, bytes(32))
    first.receive(HELLO)
    nonce = first.outgoing()[:NONCE_SIZE]
    second.receive(HELLO[:10] + nonce)
    assert refusal(first, second.outgoing()[NONCE_SIZE:]) is Refusal.BAD_PROOF


def test_echo_is_refused() -> None:
    _, answer, proof, _ = turns()
    assert refusal(waiting_for_answer(), (HELLO + HELLO)[:64]) is Refusal.BAD_PROOF
    assert refusal(waiting_for_answer(), NONCE_D + proof) is Refusal.BAD_PROOF
    assert refusal(waiting_for_proof(), answer[32:]) is Refusal.BAD_PROOF


# who talks out of turn


def test_bytes_out_of_turn_are_refused() -> None:
    hello, answer, proof, _ = turns()
    dialer, acceptor = pair()
    assert refusal(dialer, b"x") is Refusal.TOO_MUCH  # before hello was even sent
    assert refusal(acceptor, hello + b"x") is Refusal.TOO_MUCH
    _, acceptor = pair()
    acceptor.receive(hello)
    assert refusal(acceptor, b"x") is Refusal.TOO_MUCH  # before the answer was sent
    assert refusal(waiting_for_proof(), proof + b"x") is Refusal.TOO_MUCH
    assert refusal(waiting_for_answer(), answer + b"x") is Refusal.TOO_MUCH


def test_a_flood_is_not_stored() -> None:
    for half in (*pair(), waiting_for_answer(), waiting_for_proof()):
        start = MAGIC + VERSION.to_bytes(2, "little") if isinstance(half, Acceptor) else b""
        refusal(half, start + bytes(1 << 20))
        assert len(half._buffer) == 0


# anything


@given(st.lists(st.binary(max_size=80), max_size=6))
def test_noise_is_never_accepted(pieces: list[bytes]) -> None:
    for half in (*pair(), waiting_for_answer(), waiting_for_ok(), waiting_for_proof()):
        ok_expected = half.expected_bytes == 1
        for piece in pieces:
            try:
                half.receive(piece)
            except HandshakeRefused:
                break
            half.outgoing()
        if ok_expected and b"".join(pieces)[:1] == turns()[3]:
            assert half.done  # OK is one byte: the proofs were made before
        else:
            assert not half.done
            assert half.leftover == b""


@given(st.binary(min_size=10, max_size=120), st.data())
def test_noise_behind_a_genuine_start_is_never_accepted(noise: bytes, data: st.DataObject) -> None:
    hello, answer, proof, _ = turns()
    for half, message in ((pair()[1], hello), (waiting_for_answer(), answer), (waiting_for_proof(), proof)):
        keep = data.draw(st.integers(0, len(message) - 1))
        sent = message[:keep] + noise
        with contextlib.suppress(HandshakeRefused):
            half.receive(sent)
        assert not half.done


@given(st.integers(0, 3), st.data())
def test_no_bit_may_change(turn: int, data: st.DataObject) -> None:
    """Of the four messages one arrives with one bit flipped: the two never agree that all is well."""
    dialer, acceptor = pair()
    try:
        for now in range(4):
            sender, receiver = (dialer, acceptor) if now % 2 == 0 else (acceptor, dialer)
            out = bytearray(sender.outgoing())
            if now == turn:
                bit = data.draw(st.integers(0, 8 * len(out) - 1))
                out[bit // 8] ^= 1 << bit % 8
            receiver.receive(bytes(out))
    except HandshakeRefused as refused:
        assert refused.reason in Refusal
        assert str(refused) == refused.reason.value
    else:
        pytest.fail("accepted")
    assert not (dialer.done and acceptor.done)


def test_unfit_secrets_are_an_error_of_ours() -> None:
    for half in (Dialer, Acceptor):
        with pytest.raises(ValueError, match="token"):
            half(bytes(TOKEN_MIN - 1), NONCE_D)
        with pytest.raises(ValueError, match="nonce"):
            half(TOKEN, NONCE_D[1:])
        assert TOKEN.decode() not in repr(half(TOKEN, NONCE_D))
