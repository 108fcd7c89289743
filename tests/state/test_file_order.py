"""Files of state have the same bytes in every process: nothing in them has the order in which a `set` of keys is walked."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from typing import Any

from tailrace.state.memory_backend import MemoryBackend
from tailrace.testing.backends import Files, Snapshot


def digest(made: list[Snapshot]) -> str:
    """Digest of everything that some checkpoints have written."""
    found = [(one.checkpoint, sorted(one.blocks.items()), one.full, one.delta) for one in made]
    return hashlib.sha256(repr(found).encode()).hexdigest()


def state_in_rows() -> str:
    """Checkpoints of a table with keys of several types, of which some are confirmed, some pending, and some aborted."""
    chance, backend, files = random.Random(4), MemoryBackend(small=0), Files()
    table = backend.table("t")
    keys: list[Any] = [*(f"key {i}" for i in range(1_500)), None, *((f"pair {i}", None) for i in range(500))]
    made = []
    for checkpoint in range(1, 13):
        for key in chance.sample(keys, 600):
            if chance.random() < 0.5:
                table[key] = checkpoint
            else:
                table.drop(key)
        made.append(files.take(backend, checkpoint))
        outcome = chance.randrange(3)
        if outcome == 0:
            files.confirm(backend, checkpoint)
        elif outcome == 1:
            backend.abort(checkpoint)
    assert sum(len(one.delta) for one in made) > 100, "few groups were written as changes"
    return digest(made)


def test_files_have_the_same_bytes_whatever_the_hashes_of_texts_are() -> None:
    code = f"from {__name__} import state_in_rows; print(state_in_rows())"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1 and len(found.pop()) > 60
