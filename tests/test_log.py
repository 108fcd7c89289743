"""The log of Tailrace."""

from __future__ import annotations

import io
import json
import logging
import re
import sys

import pytest

from tailrace.log import PAUSE, JsonLines, KeepingHandler, LastResort, Sparing, fields, log


def told(sparing: Sparing, text: str, *args: object, level: int = logging.WARNING) -> str | None:
    """The text that is let through."""
    record = logging.LogRecord("tailrace", level, __file__, 1, text, args, None)
    return record.getMessage() if sparing.filter(record) else None


def test_a_kind_of_warning_is_reported_once_a_minute_with_how_many_there_were() -> None:
    now = [5.0]
    sparing = Sparing(lambda: now[0])
    assert told(sparing, "job %r restarts (restart %d)", "a", 1) == "job 'a' restarts (restart 1)"
    for attempt in range(2, 5):
        now[0] += PAUSE / 4
        assert told(sparing, "job %r restarts (restart %d)", "a", attempt) is None
    now[0] += PAUSE / 4
    assert told(sparing, "job %r restarts (restart %d)", "a", 5) == (
        "job 'a' restarts (restart 5) (3 more of this kind since the last one)"
    )
    now[0] += PAUSE
    assert told(sparing, "job %r restarts (restart %d)", "a", 6) == "job 'a' restarts (restart 6)"


@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR])
def test_other_jobs_and_other_kinds_are_reported(level: int) -> None:
    sparing = Sparing(lambda: 5.0)
    for text, args in [
        ("job %r restarts", ("a",)),
        ("job %r restarts", ("b",)),
        ("job %r waits", ("a",)),
        ("plain", ()),
    ]:
        assert [told(sparing, text, *args, level=level) is None for _ in range(3)] == [False, True, True]
    assert all(told(sparing, "job %r runs", "a", level=logging.INFO) for _ in range(3))


def test_a_warning_with_pauses_of_its_own_is_reported() -> None:
    sparing = Sparing(lambda: 5.0)
    for _ in range(3):
        record = logging.LogRecord("tailrace", logging.WARNING, __file__, 1, "job %r: hangs", ("a",), None)
        record.__dict__.update(fields(paced=True))
        assert sparing.filter(record)


def test_a_flood_of_kinds_takes_no_memory() -> None:
    sparing = Sparing(lambda: 5.0)
    assert all(told(sparing, "file %s is gone", f"{at}") for at in range(10_000))
    assert len(sparing._kinds) <= 1_000


def test_the_log_of_the_package_is_spared() -> None:
    assert any(isinstance(one, Sparing) for one in log.filters) and log is logging.getLogger("tailrace")


def bare(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A process in which nobody has set up anything, but for us: its standard error."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(log, "handlers", [LastResort()])
    monkeypatch.setattr(log, "filters", [])
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_a_warning_has_time_and_level_where_the_program_has_said_nothing_of_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [type(one) for one in log.handlers if not isinstance(one, KeepingHandler)] == [LastResort]
    stream = bare(monkeypatch)
    log.warning("job %r restarts", "x")
    log.info("nothing of this")
    line = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING tailrace: job 'x' restarts\n"
    assert re.fullmatch(line, stream.getvalue())


@pytest.mark.parametrize("name", [None, "tailrace"])
def test_handlers_of_the_program_take_the_place_of_ours(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    stream, own = bare(monkeypatch), io.StringIO()
    logging.getLogger(name).addHandler(logging.StreamHandler(own))
    log.warning("once")
    assert (own.getvalue(), stream.getvalue()) == ("once\n", "")


def test_a_handler_that_only_keeps_records_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kept(KeepingHandler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record)

    kept: list[logging.LogRecord] = []
    stream = bare(monkeypatch)
    log.addHandler(Kept())
    log.warning("once")
    assert stream.getvalue().endswith("WARNING tailrace: once\n") and len(kept) == 1


def test_lines_of_json_have_the_fields_that_are_known_and_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = bare(monkeypatch)
    [handler] = log.handlers
    assert isinstance(handler, LastResort)
    handler.write_json(True)
    known = fields(job="visits", run="ab12", slot=3, uid="counts", attempt=0)
    log.warning("job %r: %s\nin two lines", "visits", "redis://me:secret@host", extra=known)
    log.warning("of no job")
    try:
        raise ValueError("naïve")
    except ValueError:
        log.exception("it raised")
    first, second, third = map(json.loads, stream.getvalue().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    text = "job 'visits': redis://me:***@host\nin two lines"
    assert first == {"level": "WARNING", "logger": "tailrace", "message": text, **known}
    assert set(second) == {"time", "level", "logger", "message"}
    assert "ValueError: naïve" in third["exception"] and third["level"] == "ERROR"
    record = logging.LogRecord("mine", logging.INFO, __file__, 1, "of %s", ("mine",), None)
    assert json.loads(JsonLines().format(record))["message"] == "of mine", "for handlers of users as well"
