"""Records from one topic of Kafka to another: ours, Bytewax's connector, and a loop of the client written by hand.

`read` and `write` are the client's part alone, in one thread: CPU of a reader and a sink of ours beside the client's own
calls; `tables` are what these calls and Arrow's reader of JSON make. `partitions` reads many of them, with one reader or
with one for each. `map` and `count` are whole jobs with one worker: JSON in, a function or a count by key, JSON out.
`latency` is the time from a record's production until a reader of committed records has what became of it.

The measure is CPU, since broker and job share a machine: that of Python processes, without the JVM and the broker."""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import psutil
import pyarrow as pa
import pyarrow.json as arrow_json
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import tailrace as tr
from tailrace.runtime.worker.python_settings import rare_collections
from tests.servers import kafka_server

SYSTEMS = {
    "read": ("client", "tables", "rows", "columns"),
    "partitions": ("client", "one", "each"),
    "write": ("client", "rows", "columns"),
    "map": ("client", "tailrace", "bytewax"),
    "count": ("client", "tailrace", "bytewax"),
    "latency": ("tailrace",),
}
KEYS = 1_000
AT_ONCE = 2_000
"""Records that the client reads at a time."""
WARM = 2_000
"""Records that are read and written before the measure."""
IDLE = 5.0
"""Seconds in which no record comes."""
SCHEMA = pa.schema({"n": pa.int64(), "user": pa.string(), "page": pa.string(), "price": pa.float64()})
COMMIT_EVERY = 1.0
"""Seconds of a transaction, and of the checkpoint interval."""
_parse, _text = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode


@dataclass(frozen=True)
class KafkaSpec:
    work: str = "map"
    system: str = "tailrace"
    records: int = 300_000
    rate: int = 500
    """Records a second, of latency."""
    seconds: float = 20.0
    interval: float = 0.5
    """Seconds between checkpoints, of latency."""
    partitions: int = 32
    """Partitions of a topic, of `partitions`."""

    @classmethod
    def of(cls, options: dict[str, str], **more: Any) -> KafkaSpec:
        kinds = {"work": str, "system": str, "records": int, "rate": int, "seconds": float, "interval": float}
        kinds |= {"partitions": int}
        return cls(**{name: kind(options[name]) for name, kind in kinds.items() if name in options} | more)  # type: ignore[arg-type]


class Place(NamedTuple):
    """Where a reader and a writer work."""

    run_id: str = "run"
    uid: str = "out"
    subtask: int = 0
    incarnation: int = 1
    attempt: int = 0
    parallelism: int = 1
    job: str = "job"


def record(n: int) -> dict[str, Any]:
    return {"n": n, "user": f"u{n % KEYS}", "page": "/shop/things/and/more", "price": n % 100 / 4}


def change(one: dict[str, Any]) -> dict[str, Any]:
    """The function of `map`, in all systems."""
    return {**one, "price": one["price"] * 2}


def run(spec: KafkaSpec) -> dict[str, Any]:
    """Figures of one system. Raises `SystemExit` where the output is not what it must be."""
    with kafka_server() as server:
        url, topic, out = server.url, new_topic(server.url), new_topic(server.url)
        if spec.work == "latency":
            return _latency(spec, url, topic, out)
        few = replace(spec, records=WARM)  # imports, which a job does once, are not counted
        if spec.work == "write":
            _writing(few, url, new_topic(url))()
            with rare_collections():  # as our workers
                return _per_record(spec, _writing(spec, url, out))
        if spec.work == "partitions":
            return _partitions(spec, url)
        if spec.work == "read":
            fill(url, out, WARM)
            _reading(few, url, out)()
        fill(url, topic, spec.records)
        if spec.work == "read":
            with rare_collections():
                return _per_record(spec, _reading(spec, url, topic))
        if spec.system == "tailrace":  # Spark and its worker start before the clock
            tr.Environment(parallelism=1, progress=False).from_collection([1]).map(lambda one: one).collect()
        figures = _per_record(spec, lambda: JOBS[spec.system](spec, url, topic, out))
        verify(spec, url, out)
        return {**figures, "verified": True}


def new_topic(url: str, partitions: int = 1) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": url})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    return name


def fill(url: str, topic: str, records: int, partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": url, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    for n in range(records):
        one = record(n)
        producer.produce(topic, _text(one), one["user"], n % partitions)
        if n % 10_000 == 0:
            producer.poll(0)
    producer.flush(120)


def batches_of(url: str, topic: str, partitions: int = 1) -> Iterator[list[Any]]:
    """The committed messages of a topic, as the client gives them, without end."""
    own = {"group.id": "reader", "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": url, **own, "fetch.wait.max.ms": 5})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    while True:
        yield [message for message in consumer.consume(AT_ONCE, 0.05) if message.error() is None]


def committed(url: str, topic: str) -> Iterator[Any]:
    """The committed messages of a topic, without end."""
    for some in batches_of(url, topic):
        yield from some


def verify(spec: KafkaSpec, url: str, out: str) -> None:
    messages = committed(url, out)
    found = [_parse(next(messages).value()) for _ in range(spec.records)]
    if spec.work == "map":
        right = sorted(one["n"] for one in found) == list(range(spec.records)) and found[1]["price"] == 0.5
    else:
        seen = Counter(key for key, _ in found)
        right = max(seen.values()) * KEYS == spec.records and {tuple(one) for one in found} == {
            (key, n + 1) for key in seen for n in range(seen[key])
        }
    if not right:
        raise SystemExit(f"{spec.system}: the topic has not what it must have")


# CPU.


def cpu() -> float:
    """Seconds of this process and of the Python processes that it has started."""
    me = psutil.Process()
    total = sum(me.cpu_times()[:2])
    for process in me.children(recursive=True):
        try:
            if "python" in process.name():
                total += sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return total


def _per_record(spec: KafkaSpec, work: Callable[[], object]) -> dict[str, Any]:
    began, before = time.monotonic(), cpu()
    work()
    used = cpu() - before
    return {
        "cpu_us_per_record": round(used * 1e6 / spec.records, 2),
        "records_per_second": int(spec.records / (time.monotonic() - began)),
    }


# The client's part alone.


def _reading(spec: KafkaSpec, url: str, topic: str) -> Callable[[], object]:
    if spec.system == "client":

        def consume() -> None:
            messages = committed(url, topic)
            for _ in range(spec.records):
                _parse(next(messages).value())

        return consume
    if spec.system == "tables":

        def to_tables() -> None:
            options, left = (
                arrow_json.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="ignore"),
                spec.records,
            )
            reading = arrow_json.ReadOptions(use_threads=False, block_size=1 << 24)
            for some in batches_of(url, topic):
                if some:
                    data = b"\n".join([message.value() for message in some])
                    left -= arrow_json.read_json(pa.BufferReader(data), reading, options).num_rows
                if not left:
                    break

        return to_tables
    source = tr.sources.Kafka(url, topic, **({"schema": SCHEMA} if spec.system == "columns" else {}))
    reader = source.split_reader(Place())  # type: ignore[arg-type]

    def read() -> None:
        woken = threading.Event()
        reader.wake = woken.set  # type: ignore[method-assign]
        reader.assign([tr.AssignedSplit(0, (topic, 0, 0, spec.records))])
        left = spec.records
        while left:
            left -= (got := _read_once(reader))
            if not got:
                woken.wait(1.0)
                woken.clear()
        reader.close()

    return read


def _read_once(reader: Any) -> int:
    return sum(len(batch or ()) for _, batch in reader.read(AT_ONCE, time.time()))


def _partitions(spec: KafkaSpec, url: str) -> dict[str, Any]:
    """Figures of a topic of many partitions that is read: while records come, and while none do."""
    topic = new_topic(url, spec.partitions)
    fill(url, topic, spec.records, spec.partitions)
    me, woken = psutil.Process(), threading.Event()
    threads = me.num_threads()
    readers: list[Any] = []
    batches = batches_of(url, topic, spec.partitions)
    if spec.system != "client":
        splits = [tr.AssignedSplit(n, (topic, n, 0, None)) for n in range(spec.partitions)]
        for own in [splits] if spec.system == "one" else [[split] for split in splits]:
            reader = tr.sources.Kafka(url, topic, format="bytes").split_reader(Place())  # type: ignore[arg-type]
            reader.wake = woken.set  # type: ignore[method-assign]
            reader.assign(own)
            readers.append(reader)

    def read_until(enough: Callable[[int], bool]) -> None:
        got = 0
        while not enough(got):
            came = sum(map(_read_once, readers)) if readers else len(next(batches))
            got += came
            if readers and not came:
                woken.wait(0.1)
                woken.clear()

    with rare_collections():
        figures = _per_record(spec, lambda: read_until(lambda got: got == spec.records))
        before, over = cpu(), time.monotonic() + IDLE
        read_until(lambda got: time.monotonic() > over)
        idle = (cpu() - before) / IDLE
    more = {"threads": me.num_threads() - threads, "connections": len(me.net_connections("tcp"))}
    for reader in readers:
        reader.close()
    return {**figures, "idle_cpu_ms_per_second": round(idle * 1e3, 1), **more}


def _writing(spec: KafkaSpec, url: str, out: str) -> Callable[[], object]:
    batches: list[Any] = [
        [record(n) for n in range(at, min(at + AT_ONCE, spec.records))] for at in range(0, spec.records, AT_ONCE)
    ]
    if spec.system == "client":

        def produce() -> None:
            producer = Producer({"bootstrap.servers": url, "transactional.id": out, "linger.ms": 5})
            producer.init_transactions()
            producer.begin_transaction()
            for batch in batches:
                producer.produce_batch(out, [{"value": _text(one), "key": one["user"]} for one in batch])
                producer.poll(0)
                while len(producer) > 50_000:
                    producer.poll(0.01)
            producer.commit_transaction()

        return produce
    if spec.system == "columns":
        batches = [pa.RecordBatch.from_pylist(batch) for batch in batches]
    sink = tr.sinks.Kafka(url, out, key="user")

    def write() -> None:
        writer = sink.writer(Place())
        for batch in batches:
            writer.write(batch)
        prepared = writer.prepare()
        assert prepared is not None
        sink.publish([prepared])
        sink.close()

    return write


# Whole jobs.


def _client(spec: KafkaSpec, url: str, topic: str, out: str) -> None:
    producer = Producer({"bootstrap.servers": url, "transactional.id": out, "linger.ms": 5})
    producer.init_transactions()
    seen: Counter[str] = Counter()
    messages, left = committed(url, topic), spec.records
    while left:
        producer.begin_transaction()
        until = time.monotonic() + COMMIT_EVERY
        while left and time.monotonic() < until:
            some = [next(messages) for _ in range(min(left, AT_ONCE))]
            left -= len(some)
            made: list[dict[str, Any]] = []
            for message in some:
                one = _parse(message.value())
                key = one["user"]
                seen[key] += 1
                made.append({"value": _text(change(one) if spec.work == "map" else (key, seen[key])), "key": key})
            while made:  # the queue may be full
                producer.produce_batch(out, made)
                made = [each for each in made if each.pop("_error", None) is not None]
                producer.poll(0.05 if made else 0)
        producer.commit_transaction()


def _flow(spec: KafkaSpec, env: tr.Environment, url: str, topic: str, out: str, **ends: Any) -> None:
    read = env.from_source(tr.sources.Kafka(url, topic, **ends))
    if spec.work == "count":
        read.key_by(lambda one: one["user"]).count().sink_to(tr.sinks.Kafka(url, out, key=lambda one: one[0]))
    else:
        read.map(change).sink_to(tr.sinks.Kafka(url, out, key="user"))


def _ours(spec: KafkaSpec, url: str, topic: str, out: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = tr.CheckpointConfig(folder, interval=COMMIT_EVERY)
        env = tr.Environment(parallelism=1, checkpoint=checkpoint, progress=False)
        _flow(spec, env, url, topic, out, until="latest")
        env.execute("kafka").await_termination()


def _bytewax(spec: KafkaSpec, url: str, topic: str, out: str) -> None:
    import bytewax.operators as op
    from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
    from bytewax.dataflow import Dataflow
    from bytewax.testing import run_main

    flow = Dataflow("kafka")
    read = op.input("in", flow, KafkaSource([url], [topic], tail=False, batch_size=AT_ONCE))

    def parse(message: Any) -> Any:
        return _parse(message.value)

    def to_message(one: Any) -> Any:
        return KafkaSinkMessage(one["user"].encode(), _text(change(one)))

    if spec.work == "map":
        made = op.map("change", read, lambda message: to_message(parse(message)))
    else:
        keyed = op.key_on("by user", op.map("parse", read, parse), lambda one: one["user"])

        def count(seen: int | None, one: Any) -> tuple[int, int]:
            return (seen or 0) + 1, (seen or 0) + 1

        counts = op.stateful_map("count", keyed, count)
        made = op.map("text", counts, lambda pair: KafkaSinkMessage(pair[0].encode(), _text(pair)))
    op.output("out", made, KafkaSink([url], out))
    run_main(flow)


JOBS: dict[str, Callable[[KafkaSpec, str, str, str], None]] = {
    "client": _client,
    "tailrace": _ours,
    "bytewax": _bytewax,
}


# Latency.


def _latency(spec: KafkaSpec, url: str, topic: str, out: str) -> dict[str, Any]:
    """Percentiles of the time until a reader of committed records has a record, behind a third of the time to warm up."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = tr.CheckpointConfig(folder, interval=spec.interval)
        env = tr.Environment(parallelism=1, checkpoint=checkpoint, progress=False)
        _flow(spec, env, url, topic, out)
        job = env.execute("kafka")
        with _produced(spec, url, topic):
            delays, ends = [], time.time() + spec.seconds
            for message in committed(url, out):
                now = time.time()
                delays.append((now, now - json.loads(message.value())["at"]))
                if now > ends:
                    break
        job.cancel()
    late = [delay for at, delay in delays if at > ends - spec.seconds * 2 / 3]
    cuts = statistics.quantiles(late, n=100)
    return {"p50_ms": round(cuts[49] * 1e3), "p99_ms": round(cuts[98] * 1e3), "records_seen": len(late)}


@contextmanager
def _produced(spec: KafkaSpec, url: str, topic: str) -> Iterator[None]:
    """A thread that writes records at the rate, with the time in them."""
    over = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": url, "linger.ms": 0})
        for n in _paced(spec.rate, over):
            producer.produce(topic, _text({**record(n), "at": time.time()}))
            producer.poll(0)
        producer.flush(10)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _paced(rate: int, over: threading.Event) -> Iterable[int]:
    began, n = time.monotonic(), 0
    while not over.wait(0.005):
        while n < (time.monotonic() - began) * rate:
            yield n
            n += 1
