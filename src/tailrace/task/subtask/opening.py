"""Opening the user's functions where another worker may have to do again what they do: what they ask of the world meanwhile
is kept for as long as they are open, since it is behind all that they ever do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import msgspec

from tailrace.errors import InternalError
from tailrace.task.channels.services import Services
from tailrace.task.contract.recorded_answers import Answer, Recorder, ReplayedAnswers
from tailrace.task.operators.base import OperatorTask

Opening = Callable[[OperatorTask], AbstractContextManager[None]]
"""What is around the opening of each operator."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[str, list[Answer]])


def as_it_is(operator: OperatorTask) -> AbstractContextManager[None]:
    """Opens an operator that nobody will open again."""
    return nullcontext()


class KeptOpening:
    """Opens the operators of a slice, and keeps what each of them asks; or answers it as it was answered before."""

    def __init__(self, services: Services, before: bytes | None) -> None:
        """`before`: what was kept of the worker whose place this one takes."""
        assert isinstance(services.outside, Recorder)
        self._services, self._recorder = services, services.outside
        self._before = None if before is None else _decoder.decode(before or _NOTHING)
        self._answers: dict[str, list[Answer]] = {}

    @contextmanager
    def __call__(self, operator: OperatorTask) -> Iterator[None]:
        """Around the opening of one operator. Raises `InternalError` where it asks for other things than before."""
        services, recorder, uid = self._services, self._recorder, operator.ctx.uid
        if services.shared is not None:
            services.shared.seed(services.seed_of("open", uid, operator.ctx.subtask))
        recorder.taken()
        if self._before is None:
            yield
            answers = recorder.taken()
            if answers:
                self._answers[uid] = answers
            return
        recorder.again = ReplayedAnswers()
        recorder.again.give(self._before.get(uid, ()))
        try:
            yield
            if recorder.again.unasked and not operator.stores_what_it_found:
                raise InternalError(f"Y1: {uid} asked for more when it was opened first", ())
        finally:
            recorder.again = None

    def kept(self) -> bytes:
        """What all of them asked; empty where that was nothing."""
        answers = self._answers if self._before is None else self._before
        return _encoder.encode(answers) if answers else b""


_NOTHING = _encoder.encode({})
