"""All control messages as bytes: msgspec structs in msgpack, tagged by name. The coordinator never unpickles what they
carry."""

from __future__ import annotations

import msgspec

from tailrace.errors import ProtocolViolation
from tailrace.protocol.deployment import (
    Deploy,
    Deployed,
    EndSources,
    Failed,
    Heartbeat,
    Hello,
    Leave,
    NotPublished,
    OperatorEvent,
    PeerHello,
    Progress,
    Publish,
    Published,
    Settled,
    Start,
    SubtasksFinished,
    Welcome,
)
from tailrace.protocol.recovery import Reset, WasReset
from tailrace.protocol.replay import Gained, KnownHistory, Replaced, ReplayDone, Restored, Resume, Severed, WorkerLost
from tailrace.protocol.snapshot import Abort, Ack, Complete, Declined, Trigger
from tailrace.protocol.standby import Hold, StandBy, StandsBy, StateHeld, TakeSlot
from tailrace.protocol.termination import (
    Advance,
    CallFinish,
    EndLoop,
    EventTimeMoved,
    Quiet,
    Release,
    RoundReport,
    StartRound,
    StartWave,
    StopRounds,
    WaveReport,
)

AnyMessage = (
    Hello
    | Heartbeat
    | Deployed
    | Progress
    | SubtasksFinished
    | Published
    | NotPublished
    | Failed
    | Welcome
    | Deploy
    | Start
    | Publish
    | Settled
    | EndSources
    | Leave
    | PeerHello
    | OperatorEvent
    | Trigger
    | Ack
    | Declined
    | Abort
    | Complete
    | Reset
    | WasReset
    | Quiet
    | EventTimeMoved
    | WaveReport
    | RoundReport
    | Gained
    | Severed
    | WorkerLost
    | KnownHistory
    | Resume
    | Replaced
    | Restored
    | ReplayDone
    | StandBy
    | StandsBy
    | Hold
    | StateHeld
    | TakeSlot
    | StartWave
    | Release
    | Advance
    | CallFinish
    | EndLoop
    | StartRound
    | StopRounds
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: AnyMessage) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


class Speech:
    """An encoder for one process that sends a message to many links. It encodes the message once, and all links on which
    the message waits share the bytes. The plan of a job is in such a message."""

    def __init__(self) -> None:
        self._message: AnyMessage | None = None
        self._data = b""
        """The newest message, as bytes."""

    def encode(self, message: AnyMessage) -> bytes:
        """A message as bytes."""
        if message is not self._message:
            self._message, self._data = message, encode(message)
        return self._data


def decode(data: bytes) -> AnyMessage:
    """A message from bytes. Raises `ProtocolViolation` for bytes that are no message."""
    try:
        message: AnyMessage = _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(f"not a control message: {error}") from error
    return message
