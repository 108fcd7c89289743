"""The page as one file: all modules in their order, and nothing in it that could end a script."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tailrace.ui.export import STATIC, as_html, modules

SNAPSHOTS = Path(__file__).parent / "snapshots"


def test_a_module_comes_behind_those_that_it_needs() -> None:
    order = modules()
    assert order[-1] == "app.js"
    assert {name for name in order if "/" not in name} == {file.name for file in STATIC.glob("*.js")}
    for place, name in enumerate(order):
        for needed in re.findall(r'from "\./([^"]+)"', (STATIC / name).read_text()):
            assert needed in order[:place], f"{name} needs {needed}"


def test_a_page_in_one_file_has_the_snapshot_and_no_address_outside_of_it() -> None:
    snapshot = json.loads((SNAPSHOTS / "loop.json").read_text())
    snapshot["job"]["name"] = "</script><script>alert(1)</script>"
    made = as_html(snapshot)
    [held] = re.findall(r'id="tailrace-snapshot">(.*?)</script>', made)
    assert json.loads(held) == snapshot
    assert "alert(1)</script>" not in made.replace("&lt;", "")
    assert not re.search(r'(src|href)="(?!#)', re.sub(r'<script type="application/json".*?</script>', "", made))


def test_the_page_of_a_server_has_no_script_and_no_style_in_itself() -> None:
    """`default-src 'self'` refuses them; all its addresses are relative, so that any prefix may be before them."""
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=", page)
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert addresses and all(
        address.startswith("static/") and (STATIC.parent / address).is_file() for address in addresses
    )
    for file in STATIC.glob("*.js"):
        assert not re.search(r"https?://|fetch\([\"'`]/|\beval\(|innerHTML", file.read_text()), file.name
