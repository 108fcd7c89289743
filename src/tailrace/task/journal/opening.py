"""The opening of the user's functions where another worker may have to replay their steps: the answers of the world that
they request meanwhile are kept for as long as they are open, since every step depends on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tailrace.errors import InternalError
from tailrace.task.channels.services import Services
from tailrace.task.contract.clock_access import OPENING
from tailrace.task.journal.outside_answers import Answer, Recorder, ReplayedAnswers
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.sources.source import SourceTask

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[str, list[Answer]])


class KeptOpening:
    """Opens the operators of a slice, and keeps the answers of the world to each of them; or gives each the answers that
    it got before."""

    def __init__(self, services: Services, before: bytes | None) -> None:
        """`before`: the answers kept by the lost worker whose place this one takes."""
        assert isinstance(services.outside, Recorder)
        self._services, self._recorder = services, services.outside
        self._before = None if before is None else _decoder.decode(before or _NOTHING)
        self._answers: dict[str, list[Answer]] = {}

    @contextmanager
    def __call__(self, operator: OperatorTask) -> Iterator[None]:
        """The context around the opening of one operator. Raises `InternalError` if the operator requests other answers
        than before."""
        services, recorder, uid = self._services, self._recorder, operator.ctx.uid
        if services.shared is not None:
            services.shared.seed(services.seed_of("open", uid, operator.ctx.subtask))
        recorder.take()
        if self._before is None:
            with _opening(recorder):
                yield
            answers = recorder.take()
            if answers:
                self._answers[uid] = answers
            return
        replayed = ReplayedAnswers()
        replayed.give(self._before.get(uid, ()))
        recorder.replay(replayed)
        try:
            with _opening(recorder):
                yield
            # What an enumerator finds when it is first opened is in checkpoints, so a restored one does not look again.
            if (difference := replayed.difference) and not isinstance(operator, SourceTask):
                raise InternalError(f"Y1: {uid} asked for something else when it was opened first: {difference}", ())
        finally:
            recorder.go_live()

    def to_bytes(self) -> bytes:
        """The answers to all operators, as bytes; empty if there were none."""
        answers = self._answers if self._before is None else self._before
        return _encoder.encode(answers) if answers else b""


@contextmanager
def _opening(recorder: Recorder) -> Iterator[None]:
    """The context of user code that opens, which may read clocks by way of libraries."""
    book = recorder.readings
    assert book is not None
    book.phase = OPENING
    try:
        yield
    finally:
        book.phase = ""


_NOTHING = _encoder.encode({})
