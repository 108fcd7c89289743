"""The messages by which a standby takes the slot of a lost worker.

standby                            coordinator
   Hello(place)                ->                        as any worker; places count on behind the slots
                               <-  Welcome(epoch)
                               <-  StandBy(plan)         read the plan, import what it needs
   StandsBy                    ->
                               <-  Hold(checkpoint)      after each complete one: read the state of these slices in it
   StateHeld(checkpoint)       ->
                               <-  TakeSlot(slot)        a worker is lost
   Hello(slot, place)          ->                        on the same link
                               <-  Welcome(epoch)        and what follows for each worker that holds a slot

A standby that cannot read the plan sends `Failed`, and is started anew. No worker depends on a standby.

A hot standby also does what the worker of its slice does (`hot_standby`).
"""

from __future__ import annotations

from tailrace.protocol.message import Message


class StandBy(Message, frozen=True):
    """A command to a standby: get ready for any slot of the job."""

    plan: bytes


class StandsBy(Message, frozen=True):
    """A report of a standby: it is ready."""


class Hold(Message, frozen=True):
    """A command to a standby: keep the keyed state of these slices, as this checkpoint has it. `manifest` is the
    checkpoint's manifest as bytes."""

    checkpoint: int
    manifest: bytes
    slots: list[int]


class StateHeld(Message, frozen=True):
    """A report of a standby: it has the state of these slices, as this checkpoint has it."""

    checkpoint: int
    slots: list[int]


class TakeSlot(Message, frozen=True):
    """A command to a standby: hold this slot from now on. The standby answers with a `Hello` for the slot."""

    slot: int
