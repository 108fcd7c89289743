"""The guard of a page: which requests are let through, and the headers of each answer.

A page is for a browser on this machine, and a browser also runs what other sites send. So a request must name a host that is
this page's (`Host`), against names of other sites that lead to this machine. One that changes something must have the token
of the page, which only its link has, and must not come from another site (`Origin`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
TOKEN_HEADER = "x-tailrace-token"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""The headers of each answer. Nothing is loaded from outside, and no other site shows the page in a frame."""


@dataclass(frozen=True)
class Guard:
    """The rules of one page. `hosts` are names of this page beside those of the loopback interface: of a proxy before it,
    or of this machine where it listens to others. `read_only`: nothing is changed through it."""

    hosts: frozenset[str] = frozenset()
    read_only: bool = False
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16), repr=False)

    def refusal(self, method: str, headers: Mapping[str, str]) -> str | None:
        """The reason why a request is refused; None where it is let through. `headers` have names in lower case."""
        host = headers.get("host", "")
        if not self._is_own(f"//{host}"):
            return f"the host {host!r} is none of this page; its names are given with --allow-host, or in TAILRACE_UI_HOSTS"
        if method in ("GET", "HEAD"):
            return None
        if self.read_only:
            return "this page is read-only"
        origin = headers.get("origin")
        if origin is not None and not self._is_from_here(origin, host):
            return f"the request comes from a page of {origin!r}"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "the request comes from another site"
        if not secrets.compare_digest(headers.get(TOKEN_HEADER, "").encode(), self.token.encode()):
            return "the token is missing or wrong; open the page by the link in the log of the program, which has it"
        return None

    def _is_from_here(self, origin: str, host: str) -> bool:
        """True for the origin of this page itself, also where a proxy before it has another name."""
        return urlsplit(origin).netloc == host or (self._is_own(origin, loopback=False))

    def _is_own(self, url: str, *, loopback: bool = True) -> bool:
        try:
            name = urlsplit(url).hostname
        except ValueError:
            return False
        return name is not None and (name in self.hosts or (loopback and name in LOOPBACK))


def host_names(given: Iterable[str]) -> frozenset[str]:
    """The names of hosts in lists such as `a.example,b.example`."""
    return frozenset(name.strip().lower() for one in given for name in one.split(",") if name.strip())
