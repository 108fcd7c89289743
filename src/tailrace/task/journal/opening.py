"""The opening of the user's functions where another worker may have to replay their steps: the answers of the world that
they request meanwhile are kept for as long as they are open, since every step depends on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tailrace.errors import InternalError
from tailrace.task.channels.services import Services
from tailrace.task.journal.recorded_answers import Answer, Recorder, ReplayedAnswers
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.source import SourceTask

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
            yield
            answers = recorder.take()
            if answers:
                self._answers[uid] = answers
            return
        recorder.again = ReplayedAnswers()
        recorder.again.give(self._before.get(uid, ()))
        try:
            yield
            # What an enumerator finds when it is first opened is in checkpoints, so a restored one does not look again.
            if recorder.again.remaining and not isinstance(operator, SourceTask):
                raise InternalError(f"Y1: {uid} asked for more when it was opened first", ())
        finally:
            recorder.again = None

    def to_bytes(self) -> bytes:
        """The answers to all operators, as bytes; empty if there were none."""
        answers = self._answers if self._before is None else self._before
        return _encoder.encode(answers) if answers else b""


_NOTHING = _encoder.encode({})
