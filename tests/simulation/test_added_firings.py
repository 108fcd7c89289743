"""Windows that fire early and late go on from the checkpoint of windows that did not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tailrace as tr
from search.stories import Story
from tailrace.coordinator.job.restarts import Never
from tailrace.errors import IncompatibleState

N = 60
EXPECTED = Counter(("ab"[i % 2], float(i // 20 * 20)) for i in range(N))


def windows(form: str, **options: Any) -> Any:
    """The final results of windows, as (key, start, number of records)."""

    def build(env: tr.Environment) -> tr.DataStream:
        source = tr.sources.Generator(lambda i: ("ab"[i % 2], float(i)), rate=1_000.0, count=N)
        stream = env.from_source(source, uid="source", parallelism=1).to_columns("k string, at double", uid="columns")
        rows = stream if form == "columns" else stream.to_rows(uid="rows")
        keyed = rows.assign_timestamps("at", uid="times").key_by("k")
        counted = keyed.window(tr.Tumbling(20), allowed_lateness=10, **options).count(uid="windows")
        final = counted.map(tuple, uid="tuples").filter(lambda r: r[4:] in ((), ("final", r[-1])), uid="final")
        return final.map(lambda r: (r[0], r[1], r[3]), uid="counts")

    return build


def left_in_the_middle(story: Story, program: Any) -> None:
    world = story.simulation(program, restarts=Never)
    world.start()
    while story.files.commits < 25:
        assert not world.coordinator.status.final, world.coordinator.cause
        world.turn()


@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_job_goes_on_with_firings_that_it_did_not_have(story: Story, form: str, parallelism: int) -> None:
    left_in_the_middle(story, windows(form))
    later = windows(form, early=tr.Every(records=3, seconds=0.002), late=tr.Every(records=2))
    story.finish(story.again(later, parallelism=parallelism, restarts=Never))
    story.is_right(Counter({(key, start, n): 1 for (key, start), n in EXPECTED.items()}))


def test_a_job_does_not_discard_what_it_had_kept(story: Story) -> None:
    left_in_the_middle(story, windows("rows"))
    with pytest.raises(IncompatibleState, match="results without what was in earlier ones"):
        story.again(windows("rows", early=tr.Every(records=2), discarding=True), restarts=Never)
