"""The process that holds an incarnation, and the check that it still lives."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec


class Owner(msgspec.Struct, frozen=True):
    """The content of a claim."""

    job: str
    run_id: str
    host: str
    pid: int
    started: str
    """Start time of the process, in the form that its machine reports: with the pid it is unique on that machine."""
    nonce: str = ""
    """A text that is different for every attempt to claim."""
    root: str = ""
    """The folder of the job when this was written. It differs from the folder of the claim if that is a copy."""
    term: int = 0
    """Number of coordinators of this run that were lost before the one that claims."""
    at: str = ""
    """The address at which the one that claims waits for the workers of a lost coordinator, to go on with them. It removes
    nothing then. Empty for any other claim."""


@dataclass(frozen=True)
class ProcessId:
    """A process, as a claim names it."""

    host: str
    pid: int
    started: str

    def lives(self, owner: Owner) -> bool:
        """True if the owner's process is known to live. That can be known only for a process of this host."""
        return owner.host == self.host and start_time(owner.pid) == owner.started


def this_process() -> ProcessId:
    """The process that calls this function."""
    return ProcessId(socket.gethostname(), os.getpid(), start_time(os.getpid()) or "")


def start_time(pid: int) -> str | None:
    """Start time of a process of this machine; None if there is none, or if it has ended and waits to be collected."""
    if Path("/proc/self/stat").exists():
        try:
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return None
        fields = text[text.rindex(")") + 2 :].split()  # the name of the program before it may hold any character
        return None if fields[0] in "ZX" else f"{fields[19]} {boot()}"
    done = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, since = done.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else since.strip()


@cache
def boot() -> str:
    """A text that is unique for this start of the machine, the same in all its containers; empty if the machine has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
