"""Streams of NATS JetStream, against a real server."""

from __future__ import annotations

import itertools
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.connectors.nats import server as servers
from tailrace.connectors.nats import sink as sink_module
from tailrace.connectors.nats.sink import MARKS, is_covered
from tailrace.connectors.transactional import Scope
from tailrace.errors import ConfigError, OutputLost
from tailrace.testing import check_sink
from tests.servers import Server, nats_server

pytestmark = pytest.mark.servers
NOWHERE = "nats://user:secret@127.0.0.1:1"


class Place(NamedTuple):
    """Where a writer works."""

    run_id: str = "run"
    incarnation: int = 1
    attempt: int = 0
    subtask: int = 0
    uid: str = "out"
    job: str = "job"
    parallelism: int = 1


class Streams:
    """A connection of a test, which makes streams."""

    def __init__(self, url: str) -> None:
        self.client = servers.NatsClient([url], {})

    def make(self, name: str, **config: Any) -> str:
        given = {"subjects": [f"{name}.>", f"{MARKS}.{name}.>"], "allow_atomic": True, **config}
        self.client.run(self.client.jetstream.add_stream(name=name, **given))
        return name

    def publish(self, subject: str, *texts: str) -> None:
        for text in texts:
            self.client.run(self.client.jetstream.publish(subject, text.encode()))

    def records(self, name: str) -> list[bytes]:
        """The data of all messages of a stream but the marks."""
        state = self.client.run(self.client.jetstream.stream_info(name)).state
        found = [self.client.run(self._message(name, n)) for n in range(max(1, state.first_seq), state.last_seq + 1)]
        return [one.data for one in found if one is not None and not one.subject.startswith(MARKS)]

    async def _message(self, name: str, sequence: int) -> Any:
        try:
            return await self.client.jetstream.get_msg(name, sequence)
        except servers.client_module().js.errors.NotFoundError:
            return None


@pytest.fixture
def streams(nats: Server) -> Iterator[Streams]:
    made = Streams(nats.url)
    yield made
    made.client.close()


@pytest.fixture
def stream(streams: Streams) -> str:
    """A stream with a subject for marks."""
    return streams.make(f"s{uuid.uuid4().hex[:12]}")


def read_all(source: tr.Source) -> list[Any]:
    env = tr.Environment(parallelism=1)
    result = env.from_source(source).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return result.result()


def read_some(reader: tr.SplitReader, count: int) -> list[Any]:
    """The next `count` records of the first split of a reader; None behind its end."""
    found: list[Any] = []
    limit = time.monotonic() + 20
    while len(found) < count and time.monotonic() < limit:
        for _, records in reader.read(count - len(found), 0.0):
            found += [None] if records is None else records
        if found[-1:] == [None]:
            break
        time.sleep(0.005)
    return found


def reader_of(source: Any, position: int | None = None) -> tr.SplitReader:
    reader = source.split_reader(None)
    (split,) = source.splits(1)
    reader.assign([tr.AssignedSplit(0, split, position)])
    return reader


# The sink.


def test_a_stream_is_written_exactly_once_whatever_is_killed(nats: Server, streams: Streams) -> None:
    names = (f"c{uuid.uuid4().hex[:8]}" for _ in itertools.count())

    def make() -> tuple[tr.Sink, Callable[[], Iterable[int]]]:
        name = streams.make(next(names))

        def read() -> list[int]:
            fresh = Streams(nats.url)
            try:
                return [int(one) for one in fresh.records(name)]
            finally:
                fresh.client.close()

        return tr.sinks.Nats(nats.url, f"{name}.n"), read

    ours = nats if nats.ours else None
    report = check_sink(make, server=ours, ordered=True, rounds=2, seed=1)
    assert (report.lost, report.twice) == (0, 0) and report.kills > 0


def test_a_job_writes_a_stream_and_reads_it(nats: Server, streams: Streams, stream: str) -> None:
    env = tr.Environment(parallelism=2)
    records = [{"n": n, "to": "even" if n % 2 == 0 else "odd"} for n in range(6)]
    sink = tr.sinks.Nats(nats.url, lambda record: f"{stream}.{record['to']}", stream=stream)
    env.from_collection(records).sink_to(sink)
    tr.testing.run(env)
    found = read_all(tr.sources.Nats(nats.url, stream, until="latest"))
    assert sorted(found, key=lambda record: record["n"]) == records
    even = read_all(tr.sources.Nats(nats.url, stream, subject=f"{stream}.even", until="latest"))
    assert sorted(record["n"] for record in even) == [0, 2, 4]


def test_a_batch_of_the_largest_size_is_stored(nats: Server, streams: Streams, stream: str) -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection(range(1001)).sink_to(tr.sinks.Nats(nats.url, f"{stream}.n"))
    tr.testing.run(env)
    state = streams.client.run(streams.client.jetstream.stream_info(stream)).state
    assert state.messages == 1001 + 2  # marks


def test_a_large_transaction_is_several_batches_that_any_publisher_goes_on_with(
    nats: Server, streams: Streams, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "LARGEST_BATCH", 10)
    sink = tr.sinks.Nats(nats.url, f"{stream}.n", value="text")
    pieces = list(sink.encode(range(15)))
    first, second = (sink.transaction(Scope("run", "out", 0)) for _ in range(2))
    assert (first.last(), second.last()) == (None, None)
    store, calls = type(first)._store, itertools.count()

    async def stop(*args: Any) -> Any:
        if next(calls):
            raise ConnectionError("away")
        return await store(first, *args)

    first._store = stop  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        first.commit(7, pieces)
    second.commit(7, pieces)
    assert (first.last(), second.last()) == (7, 7)
    first.commit(7, pieces)
    second.commit(8, pieces[:1])
    assert [int(one) for one in streams.records(stream)] == [*range(15), 0]
    for one in (first, second):
        one.close()


def test_a_server_that_went_back_is_noticed(nats: Server, streams: Streams, stream: str) -> None:
    sink = tr.sinks.Nats(nats.url, f"{stream}.n")
    writer = sink.writer(Place())
    prepared = []
    for n in range(3):
        writer.write([n])
        prepared.append(writer.prepare() or b"")
    sink.publish(prepared[:2])
    state = streams.client.run(streams.client.jetstream.stream_info(stream)).state
    for sequence in (state.last_seq, state.last_seq - 1):
        streams.client.run(streams.client.jetstream.delete_msg(stream, sequence))
    with pytest.raises(OutputLost, match="run/out/0"):
        sink.publish(prepared[2:])
    sink.close()


@pytest.mark.parametrize("config", [{"allow_atomic": False}, {"subjects": None}])
def test_a_stream_that_does_not_fit_is_named_before_the_job_runs(
    config: dict[str, Any], nats: Server, streams: Streams
) -> None:
    name = f"s{uuid.uuid4().hex[:12]}"
    streams.make(name, **{key: value or [f"{name}.>"] if key == "subjects" else value for key, value in config.items()})
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(tr.sinks.Nats(nats.url, f"{name}.x"))
    with pytest.raises(ConfigError, match=rf"'{name}' needs atomic batches.*{MARKS}\.{name}\.>"):
        tr.testing.run(env)


def test_a_message_that_is_too_large_is_refused_when_it_is_written(nats: Server, stream: str) -> None:
    sink = tr.sinks.Nats(nats.url, f"{stream}.x", value="text")
    sink.check()
    with pytest.raises(ValueError, match=r"1,500,000 bytes, and the server takes 1,048,064"):
        sink.writer(Place()).write(["x" * 1_500_000])


def test_a_request_does_not_wait_for_a_server_that_is_gone() -> None:
    with nats_server() as server:
        if not server.ours:
            pytest.skip("the server is not ours to kill")
        made = Streams(server.url)
        made.make("s")
        transaction = tr.sinks.Nats(server.url, "s.x", stream="s").transaction(Scope("run", "out", 0))
        assert transaction.last() is None
        server.freeze()  # it has the request, and gives no answer
        killing = threading.Timer(0.2, server.kill)
        killing.start()
        with pytest.raises(ConnectionError, match="the connection to the server was lost"):
            transaction.last()  # and no time-out
        killing.join()
        with pytest.raises(ConnectionError):
            transaction.last()
        transaction.close()
        made.client.close()


# The source.


def test_a_stream_is_read_from_a_start_to_an_end(nats: Server, streams: Streams, stream: str) -> None:
    streams.publish(f"{stream}.x", *"12345")

    def numbers(**options: Any) -> list[int]:
        return read_all(tr.sources.Nats(nats.url, stream, **options))

    assert numbers(until="latest") == [1, 2, 3, 4, 5]
    assert numbers(until="latest", start=2) == [3, 4, 5]
    assert numbers(until="latest", start="latest") == []
    assert numbers(until=3, format="text") == ["1", "2", "3"]
    assert numbers(until=2, format=lambda m: (m.subject, m.sequence, m.data)) == [
        (f"{stream}.x", 1, b"1"),
        (f"{stream}.x", 2, b"2"),
    ]
    assert numbers(until="latest", subject=f"{stream}.y") == []


def test_reading_on_from_any_position_repeats_and_skips_nothing(nats: Server, streams: Streams, stream: str) -> None:
    source = tr.sources.Nats(nats.url, stream)
    streams.publish(f"{stream}.x", *map(str, range(10)))
    reader, seen = reader_of(source), []
    for count in (3, 1, 4, 2):
        seen += read_some(reader, count)
        reader.close()
        reader = reader_of(source, reader.position(0))
    streams.publish(f"{stream}.x", "10")
    assert seen + read_some(reader, 1) == list(range(11))
    reader.close()


def test_a_reader_wakes_its_task(nats: Server, streams: Streams, stream: str) -> None:
    woken = threading.Event()
    reader = reader_of(tr.sources.Nats(nats.url, stream))
    reader.wake = woken.set  # type: ignore[method-assign]
    assert [records for _, records in reader.read(5, 0.0)] == [[]]
    woken.clear()
    streams.publish(f"{stream}.x", "1")
    assert woken.wait(20)
    assert read_some(reader, 1) == [1]
    reader.close()


def test_a_server_that_is_killed_meanwhile_is_read_on() -> None:
    with nats_server() as server:
        if not server.ours:
            pytest.skip("the server is not ours to kill")
        streams = Streams(server.url)
        streams.make("s")
        streams.publish("s.x", "1", "2")
        reader = reader_of(tr.sources.Nats(server.url, "s"))
        assert read_some(reader, 2) == [1, 2]
        server.kill()
        server.restart()
        streams.client.close()
        streams = Streams(server.url)
        streams.publish("s.x", "3")
        assert read_some(reader, 1) == [3]
        reader.close()
        streams.client.close()


def test_messages_that_were_removed_unread_are_an_error(nats: Server, streams: Streams) -> None:
    name = streams.make(f"s{uuid.uuid4().hex[:12]}", max_msgs=3)
    streams.publish(f"{name}.x", *"1234")
    source = tr.sources.Nats(nats.url, name, until="latest")
    reader = reader_of(source)
    assert read_some(reader, 1) == [2]
    position = reader.position(0)
    reader.close()
    streams.publish(f"{name}.x", *"5678")
    late = reader_of(source, position)
    with pytest.raises(LookupError, match=r"read up to 2, and begins at 6.*on_lost=\"ignore\""):
        read_some(late, 1)
    late.close()
    ignoring = reader_of(tr.sources.Nats(nats.url, name, on_lost="ignore"), position)
    assert read_some(ignoring, 3) == [6, 7, 8]
    ignoring.close()


def test_a_stream_that_was_made_anew_is_an_error(nats: Server, stream: str) -> None:
    reader = reader_of(tr.sources.Nats(nats.url, stream), 100)
    with pytest.raises(LookupError, match="read up to 100, and its newest sequence is 0"):
        read_some(reader, 1)
    reader.close()


def test_a_stream_that_was_made_anew_is_an_error_also_where_it_has_more_messages(
    nats: Server, streams: Streams, stream: str
) -> None:
    streams.publish(f"{stream}.x", *"12")
    source = tr.sources.Nats(nats.url, stream)
    (split,) = source.splits(1)
    streams.client.run(streams.client.jetstream.delete_stream(stream))
    streams.make(stream)
    streams.publish(f"{stream}.x", *"3456")
    reader = source.split_reader(None)  # type: ignore[arg-type]
    reader.assign([tr.AssignedSplit(0, split, 2)])
    with pytest.raises(LookupError, match="read up to 2, and was deleted and made anew since"):
        read_some(reader, 1)
    reader.close()


def test_a_purge_of_all_that_a_slow_job_has_not_read_is_an_error(
    nats: Server, streams: Streams, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no later message that would show it."""
    monkeypatch.setattr("tailrace.connectors.fetched.AHEAD", 2)
    monkeypatch.setattr("tailrace.connectors.nats.source.FETCHED", 2)
    streams.publish(f"{stream}.x", *"1234")
    reader = reader_of(tr.sources.Nats(nats.url, stream))
    limit = time.monotonic() + 20
    while not reader.lag(0.0)[0].records and time.monotonic() < limit:
        time.sleep(0.005)  # two are fetched, and wait
    streams.client.run(streams.client.jetstream.purge_stream(stream))
    assert read_some(reader, 2) == [1, 2]
    with pytest.raises(LookupError, match="read up to 2, and begins at 5: messages between were removed unread"):
        read_some(reader, 1)
    reader.close()


# What is refused.


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: tr.sources.Nats("localhost", "s"), "nats://host:4222"),
        (lambda: tr.sources.Nats([], "s"), "servers is a URL"),
        (lambda: tr.sources.Nats("nats://h", ""), "name of a stream"),
        (lambda: tr.sources.Nats("nats://h", "s", start="new"), "start is"),
        (lambda: tr.sources.Nats("nats://h", "s", until=-1), "until is"),
        (lambda: tr.sources.Nats("nats://h", "s", format="csv"), "format is"),
        (lambda: tr.sources.Nats("nats://h", "s", on_lost="skip"), "on_lost is"),
        (lambda: tr.sinks.Nats("nats://h", "a.*"), "without wildcards"),
        (lambda: tr.sinks.Nats("nats://h", lambda record: "a"), "give stream="),
        (lambda: tr.sinks.Nats("nats://h", "a", value="csv"), "value is"),
        (lambda: tr.sinks.Nats("nats://h", "a", lost_output="no"), "lost_output is"),
    ],
)
def test_a_wrong_argument_is_refused(make: Callable[[], Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        make()


def test_json_objects_come_in_columns(nats: Server, streams: Streams, stream: str) -> None:
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    env = tr.Environment(parallelism=1)
    columns = env.from_collection([{"n": 1, "text": "a"}, {"n": None, "text": "é"}]).to_columns(schema)
    columns.sink_to(tr.sinks.Nats(nats.url, f"{stream}.x"))
    tr.testing.run(env)
    assert streams.records(stream) == [b'{"n":1,"text":"a"}', '{"n":null,"text":"é"}'.encode()]
    streams.publish(f"{stream}.x", '{"text": "b", "more": [1]}')
    found = read_all(tr.sources.Nats(nats.url, stream, schema=schema, until="latest"))
    assert [tuple(row) for row in found] == [(1, "a"), (None, "é"), (None, "b")]
    streams.publish(f"{stream}.x", '{"n": "1"}')
    with pytest.raises(tr.JobFailed, match=rf"message \d+ of stream '{stream}' cannot be decoded"):
        read_all(tr.sources.Nats(nats.url, stream, schema=schema, until="latest"))
    with pytest.raises(ConfigError, match="columns are those of JSON objects"):
        tr.sources.Nats(nats.url, stream, schema=schema, format="text")


def test_a_message_that_cannot_be_parsed_goes_aside(nats: Server, streams: Streams, stream: str) -> None:
    streams.publish(f"{stream}.x", "1", "{", "3")
    env = tr.Environment(parallelism=1)
    read = env.from_source(tr.sources.Nats(nats.url, stream, until="latest"), on_error=tr.Aside("bad"))
    good, bad = read.sink_to(tr.sinks.Collect()), read.side_output("bad").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    [failed] = bad.result()
    assert good.result() == [1, 3] and (failed.record.sequence, failed.record.data) == (2, b"{")


def test_a_server_that_does_not_answer_is_named_before_the_job_runs() -> None:
    for one in (tr.sources.Nats(NOWHERE, "s"), tr.sinks.Nats(NOWHERE, "s.x")):
        with pytest.raises(ConfigError, match=r"nats://user:\*\*\*@127.0.0.1:1") as found:
            one.check()
        assert "secret" not in str(found.value) + repr(one)


def test_a_server_that_is_silent_is_named_before_the_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "CONNECT_TIMEOUT", 0.1)
    monkeypatch.setattr(servers, "REQUEST_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        for one in (tr.sources.Nats(url, "s"), tr.sinks.Nats(url, "s.x")):
            with pytest.raises(ConfigError, match=f"{url}: .*(no answer|timeout)"):
                one.check()


def test_a_stream_that_is_not_there_is_named_before_the_job_runs(nats: Server) -> None:
    for one in (tr.sources.Nats(nats.url, "nobody"), tr.sinks.Nats(nats.url, "nobody.x")):
        with pytest.raises(ConfigError, match="no such stream"):
            one.check()


@pytest.mark.parametrize(
    ("pattern", "subject", "covers"),
    [
        *(("a.>", "a.b.c", True), ("a.>", "a", False), ("a.*", "a.b", True)),
        *(("a.*", "a.b.c", False), (">", "x", True), ("a", "b", False)),
    ],
)
def test_subjects_with_wildcards(pattern: str, subject: str, covers: bool) -> None:
    assert is_covered(pattern, subject) is covers


# Errors that no other try would help.


def test_a_deleted_stream_fails_the_job_at_once(nats: Server, streams: Streams, stream: str) -> None:
    def delete(record: str) -> str:
        streams.client.run(streams.client.jetstream.delete_stream(stream))
        return record

    url = nats.url.replace("nats://", "nats://me:secret-word@")
    env = tr.Environment(parallelism=1, restart=tr.NoRestart())
    env.from_collection(["a"]).map(delete).sink_to(
        tr.sinks.Nats(url, f"{stream}.a", stream=stream, value="text"), name="wire"
    )
    with pytest.raises(tr.JobFailed, match="the server has no such stream") as failed:
        tr.testing.run(env)
    text = str(failed.value)
    assert failed.value.operator == "wire" and "ConfigError" in text and "secret-word" not in text
    assert nats.url.removeprefix("nats://") in text and repr(stream) in text
    with pytest.raises(ConfigError, match=f"subject '{stream}.a': the server has no such stream"):
        tr.sinks.Nats(url, f"{stream}.a", value="text").transaction(Scope("run", "out", 0))


def test_a_message_above_the_limit_of_its_stream_is_an_error_that_comes_again(nats: Server, streams: Streams) -> None:
    stream = streams.make(f"s{uuid.uuid4().hex[:12]}", max_msg_size=1_000)
    sink = tr.sinks.Nats(nats.url, f"{stream}.a", stream=stream, value="text")
    writer = sink.writer(Place())
    writer.write(["x" * 5_000])
    with pytest.raises(ConfigError, match=f"stream '{stream}': .*too large"):
        sink.publish([writer.prepare()])
    sink.close()
