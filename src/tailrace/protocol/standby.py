"""A standby takes the slot of a worker that is lost.

standby                            coordinator
   Hello(place)                ->                        as any worker; places count on behind the slots
                               <-  Welcome(epoch)
                               <-  StandBy(plan)         read the plan, import what it needs
   StandsBy                    ->
                               <-  Hold(checkpoint)      after each complete one: read what it has of these slices
   StateHeld(checkpoint)            ->
                               <-  TakeSlot(slot)        a worker is lost
   Hello(slot, place)          ->                        on the same link
                               <-  Welcome(epoch)        and what follows for whoever holds a slot

A standby that cannot read the plan says `Failed`, and is started anew. Nobody depends on it.
"""

from __future__ import annotations

from tailrace.protocol.message import Message


class StandBy(Message, frozen=True):
    """To a standby: get ready for any slot of the job."""

    plan: bytes


class StandsBy(Message, frozen=True):
    """From a standby: it is ready."""


class Hold(Message, frozen=True):
    """To a standby: keep the keyed state of these slices, as this checkpoint has it. `manifest` is its manifest's bytes."""

    checkpoint: int
    manifest: bytes
    slots: list[int]


class StateHeld(Message, frozen=True):
    """From a standby: it has the state of these slices, as this checkpoint has it."""

    checkpoint: int
    slots: list[int]


class TakeSlot(Message, frozen=True):
    """To a standby: hold this slot from now on. It says hello for it."""

    slot: int
