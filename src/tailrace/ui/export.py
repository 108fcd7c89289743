"""The page of a job as one HTML file: a snapshot, the page's own modules and the places of its graph, without a server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from tailrace.graph.picture import layout_of

STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^(?:import|export) .*?from "(\./[^"]+)";$', re.M)

LOADER = """
const urls = {};
for (const [name, text] of JSON.parse(document.getElementById("tailrace-modules").textContent)) {
  const whole = text.replace(/from "(\\.\\/[^"]+)"/g, (_, path) => `from "${urls[path.slice(2)]}"`);
  urls[name] = URL.createObjectURL(new Blob([whole], { type: "text/javascript" }));
}
import(urls["app.js"]);
"""
"""The script that loads the modules of the file: none may be imported by its name where no server is."""

PAGE = """<!doctype html>
<html lang="en">
<!-- With htm (Apache-2.0) and preact (MIT), https://github.com/developit/htm, https://github.com/preactjs/preact -->
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<div id="page"></div>
<script type="application/json" id="tailrace-snapshot">{snapshot}</script>
<script type="application/json" id="tailrace-places">{places}</script>
<script type="application/json" id="tailrace-modules">{modules}</script>
<script>{loader}</script>
</body>
</html>
"""


def as_html(snapshot: Mapping[str, Any]) -> str:
    """A snapshot of a job as an HTML file that needs nothing else: it opens from a disk, an e-mail or a ticket."""
    places = layout_of(snapshot["graph"], row=20.0, top=46.0, least=216.0)
    return PAGE.format(
        title=escape(f"{snapshot['job']['name']} – Tailrace"),
        style=(STATIC / "page.css").read_text(encoding="utf-8"),
        snapshot=_json_text(snapshot),
        places=_json_text(
            {
                "width": places.width,
                "height": places.height,
                "boxes": places.boxes,
                "scopes": places.scopes,
                "links": places.links,
            }
        ),
        modules=_json_text([[name, (STATIC / name).read_text(encoding="utf-8")] for name in modules()]),
        loader=LOADER,
    )


def modules(start: str = "app.js") -> list[str]:
    """The modules that a module of the page needs, each behind those that it needs itself, and the module itself."""
    found: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in found:
            for path in _IMPORT.findall((STATIC / name).read_text(encoding="utf-8")):
                visit(path.removeprefix("./"))
            found[name] = None

    visit(start)
    return list(found)


def _json_text(value: Any) -> str:
    """A value as JSON that ends no script element, with null for what is no finite number."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")
