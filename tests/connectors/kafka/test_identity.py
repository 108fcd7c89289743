"""Topics that were deleted and made anew are noticed, where the server gives ids. The one of tests gives none, so the tests
give them."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import pytest

import tailrace as tr
from tailrace.api.connectors import AssignedSplit
from tailrace.connectors.kafka import enumerator, identity
from tailrace.connectors.kafka.client import KafkaUnreachable
from tailrace.connectors.kafka.enumerator import PartitionSplit
from tailrace.errors import ConfigError
from tests.connectors.kafka.brokers import LIMIT, Topic
from tests.connectors.kafka.test_reader import Place, read_until
from tests.servers import Server

pytestmark = pytest.mark.servers


class Given:
    """The ids that a server gives, one answer after the other; the last one from then on."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def __call__(self, servers: str, options: Any, topics: Any) -> dict[str, str]:
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        return dict.fromkeys(topics, found) if found else {}


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_answers(*answers: Any) -> None:
        for module in (enumerator, identity):
            monkeypatch.setattr(module, "topic_ids", Given(*answers))

    return set_answers


def looks(made: Any, count: int) -> list[Any]:
    """The splits of so many looks of an enumerator."""
    found: list[Any] = []
    now, done, stop = 0.0, 0, time.monotonic() + LIMIT
    while done < count and time.monotonic() < stop:
        found += made.discover(now)
        later = made.next_at(now)
        done += later > now + 1  # a look is over, and the next one is due later
        now = later
    return found


def test_a_server_without_ids_is_read_as_it_is(kafka: Server) -> None:
    if not kafka.ours:
        pytest.skip("another server may give ids")
    topic = Topic(kafka)
    assert identity.topic_ids(kafka.url, {}, [topic.name, "not-there"]) == {}
    (split,) = looks(tr.sources.Kafka(kafka.url, topic.name).enumerator(1), 1)
    assert split == PartitionSplit(topic.name, 0, 0, None, None)


def test_a_topic_that_is_made_anew_while_the_job_runs_is_an_error(kafka: Server, give: Any) -> None:
    topic = Topic(kafka, 2)
    give("first", "first", "second")
    made = tr.sources.Kafka(kafka.url, topic.name).enumerator(1)
    assert [split.topic_id for split in looks(made, 2)] == ["first", "first"]
    with pytest.raises(ConfigError, match=f"the topic '{topic.name}' was deleted and made anew"):
        looks(made, 1)


@pytest.mark.parametrize("pattern", [False, True])
def test_a_topic_that_is_made_anew_between_two_runs_is_an_error(kafka: Server, give: Any, pattern: bool) -> None:
    topic = Topic(kafka)
    source = tr.sources.Kafka(kafka.url, re.compile(topic.name) if pattern else topic.name)
    give("first", "first", "second")
    made = source.enumerator(1)
    looks(made, 1)
    assert made.position == [(topic.name, 0, "first")]
    assert looks(source.enumerator(1, made.position), 1) == []
    with pytest.raises(ConfigError, match="made anew"):
        looks(source.enumerator(1, made.position), 1)


def test_a_position_without_ids_takes_those_of_the_first_look(kafka: Server, give: Any) -> None:
    topic = Topic(kafka)
    give("first")
    made = tr.sources.Kafka(kafka.url, topic.name).enumerator(1, [(topic.name, 0)])
    assert looks(made, 1) == [] and made.position == [(topic.name, 0, "first")]


def test_a_check_that_fails_while_it_is_looked_at_is_not_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check ends between the two looks of `is_over`: at its error, and at its thread."""
    begun, ended = threading.Event(), threading.Event()

    def answer(*_: Any) -> dict[str, str]:
        begun.wait(LIMIT)
        return {"t": "second"}

    monkeypatch.setattr(identity, "topic_ids", answer)
    check = identity.IdentityCheck("nowhere", {}, {"t": "first"}, ended.set)

    class EndsWhenAsked:
        def is_alive(self) -> bool:
            begun.set()
            assert ended.wait(LIMIT)
            thread.join()
            return thread.is_alive()

    thread, check._thread = check._thread, EndsWhenAsked()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="made anew"):
        while not check.is_over():
            pass


def test_a_reader_reads_nothing_of_a_topic_that_was_made_anew(kafka: Server, give: Any) -> None:
    topic = Topic(kafka)
    topic.write([b"1", b"2"])
    split = PartitionSplit(topic.name, 0, 0, 2, "first")
    for answers in (["second"], [KafkaUnreachable("away"), "second"], [KafkaUnreachable("away"), "first"]):
        give(*answers)
        reader = tr.sources.Kafka(kafka.url, topic.name, format="text").split_reader(Place())
        reader.assign([AssignedSplit(0, split, 1)])
        if answers[-1] == "first":
            assert read_until(reader, lambda found, _: None in found.get(0, ())) == {0: ["2", None]}
        else:
            with pytest.raises(ConfigError, match="made anew"):
                read_until(reader, lambda found, _: bool(found.get(0)))
            assert reader.position(0) == 1
        reader.close()
