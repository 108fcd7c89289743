"""Advice for values that pickle refuses."""

from __future__ import annotations

from tailrace.errors import message_of


def advice(error: Exception) -> str:
    """The advice to the user for an error of pickle. It looks for phrases that the messages of all Python versions share."""
    message = message_of(error)
    if "<locals>" in message or "local object" in message:
        return (
            "pickle finds a class by its name: move it out of the function, to the top level of the program or a module"
        )
    if "not the same object" in message:
        return "its class was defined again after this value was made (a cell that was run again?): make the value anew"
    if "attribute lookup" in message or "not found as" in message:
        return "pickle finds a class by its name: it must be at the top level of the program or a module"
    return "give plain data, or define what pickle is to keep of it (__getstate__)"
