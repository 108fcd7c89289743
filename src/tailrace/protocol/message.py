"""The root of the messages between coordinator and workers. `protocol.message_codec` knows all of them, as bytes."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The root of all control messages. Fields are only ever added, with defaults, so an older side can be read."""
