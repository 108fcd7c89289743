"""Files of others in the page and in its tests: those of the lock, unchanged, with their licences."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [ROOT / "src/tailrace/ui/static/vendor", ROOT / "tests/ui/vendor"]
FIELDS = {"file", "package", "version", "source", "licence", "licence_text", "sha256"}


@pytest.mark.parametrize("folder", FOLDERS, ids=["page", "tests"])
def test_files_of_others_are_those_of_the_lock(folder: Path) -> None:
    rows = json.loads((folder / "lock.json").read_text())
    found = {row["file"]: hashlib.sha256((folder / row["file"]).read_bytes()).hexdigest() for row in rows}
    assert found == {row["file"]: row["sha256"] for row in rows}
    texts = {row["licence_text"] for row in rows}
    texts |= {one["licence_text"] for row in rows for one in row.get("contains", {}).values()}
    assert {path.name for path in folder.iterdir()} - {"README.md", "lock.json"} == found.keys() | texts


@pytest.mark.parametrize("folder", FOLDERS, ids=["page", "tests"])
def test_each_file_has_its_version_in_its_name_and_the_text_of_its_licence(folder: Path) -> None:
    for row in json.loads((folder / "lock.json").read_text()):
        assert row.keys() - {"contains"} == FIELDS
        assert row["version"] in row["file"] and row["source"].endswith(Path(row["file"]).suffix)
        for one in (row, *row.get("contains", {}).values()):
            text = (folder / one["licence_text"]).read_text()
            title = {"MIT": "MIT", "Apache-2.0": "Apache License", "MPL-2.0": "Mozilla Public License"}
            assert title.get(one["licence"], "Eclipse Public License") in text or "Permission is hereby granted" in text
