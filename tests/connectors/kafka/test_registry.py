"""Avro and Protobuf with a schema registry: each record is read by the schema that it was written with."""

from __future__ import annotations

import base64
import json
import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

import tailrace as tr
from tailrace.connectors.kafka import registry as registry_module
from tailrace.connectors.kafka.messages import MessageColumns
from tailrace.errors import ConfigError, ServiceUnreachable
from tests.connectors.kafka.brokers import Topic
from tests.connectors.kafka.registries import SchemaRegistryServer
from tests.servers import Server

pytest.importorskip("httpx2", reason="pip install 'tailrace[registry]' (or ./dev setup)")
from tests.connectors.kafka import messages_pb2 as shop


def record_of(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Click", "namespace": "shop", "fields": list(fields)}


USER, PAGE = {"name": "user", "type": "string"}, {"name": "page", "type": "string"}
COUNT = {"name": "count", "type": "long", "default": 1}
CLICK = record_of(USER, PAGE)
WIDER = record_of(USER, PAGE, COUNT)


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    made = SchemaRegistryServer()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not wait between its tries."""
    make = registry_module.registry_library().SchemaRegistryClient
    monkeypatch.setattr(registry_module, "new_client", lambda library, config: make({**config, "max.retries": 0}))


@dataclass
class Click:
    user: str
    page: str


def test_what_is_written_comes_back_with_one_request_for_each_schema(server: SchemaRegistryServer) -> None:
    encode = tr.KafkaAvro(server.url, CLICK).encoder("clicks-value")
    values = [encode(one) for one in ({"user": "ada", "page": "/"}, Click("bob", "/jobs"), None)]
    assert values[0] == b"\0" + struct.pack(">I", 1) + b"\x06ada\x02/" and values[2] is None
    decode = tr.KafkaAvro(server.url)
    assert [decode(one) for one in values[:2] * 3] == [
        {"user": "ada", "page": "/"},
        {"user": "bob", "page": "/jobs"},
    ] * 3
    assert server.requests == ["POST /subjects/clicks-value/versions?normalize=False", "GET /schemas/ids/1"]


def test_records_come_in_the_schema_of_the_reader(server: SchemaRegistryServer) -> None:
    first, second = (tr.KafkaAvro(server.url, one).encoder("s") for one in (CLICK, WIDER))
    values = [
        first({"user": "a", "page": "b"}),
        second({"user": "c", "page": "d", "count": 5}),
        second(Click("e", "f")),
    ]
    reader = tr.KafkaAvro(server.url, json.dumps(record_of(COUNT, USER)))
    assert list(map(reader, values)) == [
        {"user": "a", "count": 1},
        {"user": "c", "count": 5},
        {"user": "e", "count": 1},
    ]
    other = tr.KafkaAvro(server.url, record_of(USER, {"name": "age", "type": "int"}))
    with pytest.raises(Exception, match="No default value for field age"):
        other(values[0])


def test_a_schema_may_refer_to_others(server: SchemaRegistryServer) -> None:
    place = json.dumps(
        {"type": "record", "name": "Place", "namespace": "shop", "fields": [{"name": "city", "type": "string"}]}
    )
    visit = json.dumps(record_of({"name": "at", "type": "shop.Place"}))
    server.answer("POST", "/subjects/shop.Place/versions", {"schema": place}, None)
    references = [{"name": "shop.Place", "subject": "shop.Place", "version": 1}]
    server.answer("POST", "/subjects/v/versions", {"schema": visit, "references": references}, None)
    assert tr.KafkaAvro(server.url)(b"\0\0\0\0\2\x08Oslo") == {"at": {"city": "Oslo"}}


@pytest.mark.parametrize("record", [{"user": "a"}, {"user": "a", "page": 1}, {"user": "a", "page": "b", "more": 1}, 7])
def test_a_record_that_does_not_fit_the_schema_is_refused(server: SchemaRegistryServer, record: Any) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        tr.KafkaAvro(server.url, CLICK).encoder("s")(record)


def test_a_schema_that_a_subject_refuses_is_an_error_in_the_words_of_the_registry(server: SchemaRegistryServer) -> None:
    tr.KafkaAvro(server.url, CLICK).encoder("s")(Click("a", "b"))
    narrower = record_of(USER, {"name": "age", "type": "int"})
    with pytest.raises(
        ConfigError, match=r"subject 's': Schema being registered is incompatible: No default.*SR code 409"
    ):
        tr.KafkaAvro(server.url, narrower).encoder("s")({"user": "a", "age": 1})


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{"user": 1}', "does not begin with the id of a schema"),
        (b"\0\0\0", "does not begin with the id of a schema"),
        (b"\0\0\0\0\x63", "schema 99: Schema 99 not found"),
        (b"\0\0\0\0\1\x06ada\x02/more", "schema 1 ends before the value does, 4 bytes before"),
    ],
)
def test_a_value_of_something_else_is_refused(server: SchemaRegistryServer, data: bytes, error: str) -> None:
    tr.KafkaAvro(server.url, CLICK).encoder("s")(Click("a", "b"))
    with pytest.raises(ValueError, match=error):
        tr.KafkaAvro(server.url)(data)


def test_a_registry_that_is_away_is_no_fault_of_a_record(server: SchemaRegistryServer) -> None:
    decode = tr.KafkaAvro(server.url)
    server.away = True
    with pytest.raises(ServiceUnreachable, match="schema 1: not now"):
        decode(b"\0\0\0\0\1\x06ada\x02/")
    nowhere = tr.KafkaAvro("http://me:secret-word@127.0.0.1:1")
    with pytest.raises(ServiceUnreachable, match="does not answer") as error:
        nowhere(b"\0\0\0\0\1\x06ada\x02/")
    assert "secret-word" not in f"{error.value}{nowhere!r}"


def test_a_login_goes_with_each_request() -> None:
    login = base64.b64encode(b"me:word").decode()
    server = SchemaRegistryServer(f"Basic {login}")
    settings = {"url": server.url, "basic.auth.user.info": "me:word"}
    tr.KafkaAvro(settings, CLICK).check("s")
    with pytest.raises(ConfigError, match=r"Unauthorized.*basic\.auth\.user\.info"):
        tr.KafkaAvro(server.url, CLICK).check("s")
    server.close()


def test_messages_of_protobuf_come_back(server: SchemaRegistryServer) -> None:
    form = tr.KafkaProtobuf(shop.Click, server.url)
    encode = form.encoder("clicks-value")
    click = shop.Click(user="ada", at=7, button=shop.Click.Button(name="go"))
    value = encode(click)
    assert value is not None and value[:7] == b"\0\0\0\0\1\2\2"  # one index, which is 1
    decode = pickle.loads(pickle.dumps(form))
    assert [decode(value), decode(value)] == [click, click] and encode(None) is None
    assert server.requests[1:] == ["GET /schemas/ids/1?format=serialized"]
    first = tr.KafkaProtobuf(shop.Place, server.url).encoder("clicks-value")(shop.Place(city="Oslo"))
    assert first is not None and first[:6] == b"\0\0\0\0\1\0"  # the first message is a single zero
    with pytest.raises(ValueError, match=r"it is a message shop\.Place, not shop\.Click"):
        decode(first)
    button = tr.KafkaProtobuf(shop.Click.Button, server.url)
    assert button(button.encoder("clicks-value")(shop.Click.Button(name="x"))).name == "x"
    same = {"user": "ada", "at": 7, "button": {"name": "go"}}
    assert encode(same) == value and encode({**same, "button": None}) == encode(shop.Click(user="ada", at=7))
    with pytest.raises(TypeError, match="writes messages Click, or dicts of their fields, not a int"):
        encode(7)
    with pytest.raises(ValueError, match='no "age" field'):
        encode({"age": 1})


def test_a_file_that_a_message_imports_is_registered_by_its_own_name(server: SchemaRegistryServer) -> None:
    field = descriptor_pb2.FieldDescriptorProto(name="place", number=1, label=1, type=11, type_name=".shop.Place")
    file = descriptor_pb2.FileDescriptorProto(
        name="tests/visit.proto",
        package="shop",
        syntax="proto3",
        dependency=["tests/messages.proto", "google/protobuf/timestamp.proto"],
        message_type=[descriptor_pb2.DescriptorProto(name="Visit", field=[field])],
    )
    assert timestamp_pb2.DESCRIPTOR.name == file.dependency[1]
    found = descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    visit = message_factory.GetMessageClass(found.message_types_by_name["Visit"])
    form = tr.KafkaProtobuf(visit, server.url)
    value = form.encoder("visits-value")(visit(place=shop.Place(city="Oslo")))
    assert form(value).place.city == "Oslo"
    assert list(server.subjects) == ["tests/messages.proto", "visits-value"]
    reference = {"name": "tests/messages.proto", "subject": "tests/messages.proto", "version": 1}
    assert server.schemas[1]["references"] == [reference]


def message_of(name: str, *fields: Any, **more: Any) -> Any:
    """The class of a message with these fields, by their names and types."""
    made = descriptor_pb2.DescriptorProto(
        name=name, field=[descriptor_pb2.FieldDescriptorProto(**one) for one in fields]
    )
    made.MergeFrom(descriptor_pb2.DescriptorProto(**more))
    file = descriptor_pb2.FileDescriptorProto(
        name=f"tests/{name}.proto", package="shop", syntax="proto3", message_type=[made]
    )
    file.dependency.extend([timestamp_pb2.DESCRIPTOR.name, wrappers_pb2.DESCRIPTOR.name])
    found = descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(found.message_types_by_name[name])


def test_messages_come_in_columns_of_the_fields_that_the_schema_names() -> None:
    state = descriptor_pb2.EnumDescriptorProto(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    entry = descriptor_pb2.DescriptorProto(name="TagsEntry", options={"map_entry": True})
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=3)
    line = descriptor_pb2.DescriptorProto(name="Line")
    line.field.add(name="item", number=1, label=1, type=9)
    line.field.add(name="note", number=2, label=1, type=9)
    order = message_of(
        "Order",
        {"name": "id", "number": 1, "label": 1, "type": 4},
        {"name": "state", "number": 2, "label": 1, "type": 14, "type_name": ".shop.Order.State"},
        {"name": "lines", "number": 3, "label": 3, "type": 11, "type_name": ".shop.Order.Line"},
        {"name": "tags", "number": 4, "label": 3, "type": 11, "type_name": ".shop.Order.TagsEntry"},
        {"name": "at", "number": 5, "label": 1, "type": 11, "type_name": ".google.protobuf.Timestamp"},
        {"name": "size", "number": 6, "label": 1, "type": 11, "type_name": ".google.protobuf.Int64Value"},
        {"name": "seal", "number": 7, "label": 1, "type": 12},
        {"name": "rate", "number": 8, "label": 1, "type": 1, "proto3_optional": True, "oneof_index": 0},
        enum_type=[state],
        nested_type=[entry, line],
        oneof_decl=[descriptor_pb2.OneofDescriptorProto(name="_rate")],
    )
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("state", pa.string()),
            ("lines", pa.list_(pa.struct([("item", pa.string())]))),
            ("tags", pa.map_(pa.string(), pa.int64())),
            ("at", pa.timestamp("us", "UTC")),
            ("size", pa.int64()),
            ("seal", pa.binary()),
            ("rate", pa.float64()),
        ]
    )
    full = order(id=5, state="PAID", lines=[{"item": "cup", "note": "x"}, {}], tags={"a": 2**62}, seal=b"\0", rate=0.0)
    full.at.FromJsonString("1969-12-31T23:59:59.999999999Z")
    full.size.value = -1
    make = MessageColumns(order.DESCRIPTOR, schema)
    when = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert make([full, order(), None]).to_pylist() == [
        {"id": 5, "state": "PAID", "lines": [{"item": "cup"}, {"item": ""}], "tags": [("a", 2**62)], "at": when, "size": -1,
         "seal": b"\0", "rate": 0.0},
        {"id": 0, "state": "NEW", "lines": [], "tags": [], "at": None, "size": None, "seal": b"", "rate": None},
        dict.fromkeys(schema.names),
    ]  # fmt: skip
    assert MessageColumns(order.DESCRIPTOR, pa.schema([("state", pa.int32())]))([full]).to_pylist() == [{"state": 1}]
    with pytest.raises(ValueError, match="'id'"):
        make([order(id=2**63)])
    with pytest.raises(ValueError, match="has no name for the number 9"):
        make([order(state=9)])
    for name, kind, error in (
        ("ids", pa.int64(), r"'ids' is no field of shop\.Order; it has id, state"),
        ("lines", pa.list_(pa.struct([("items", pa.string())])), r"'lines\.items' is no field of shop\.Order\.Line"),
        ("lines", pa.string(), r"'lines' is string, and shop\.Order\.lines is a list"),
        ("at", pa.timestamp("ns", "UTC"), "a timestamp of microseconds"),
        ("tags", pa.list_(pa.string()), "a map"),
        ("state", pa.float64(), "a text or a number"),
    ):
        with pytest.raises(ConfigError, match=error):
            tr.sources.Kafka("h:1", "t", format=tr.KafkaProtobuf(order, "http://h"), schema=pa.schema([(name, kind)]))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: tr.KafkaAvro(""), "the URL of a schema registry"),
        (lambda: tr.KafkaAvro("http://h", {"type": "nothing"}), "no Avro schema"),
        (lambda: tr.KafkaAvro("http://h", subject=""), "name of a subject"),
        (lambda: tr.KafkaProtobuf(dict, "http://h"), "class of a message"),
        (lambda: tr.sinks.Kafka("h:1", "t", value=tr.KafkaAvro("http://h")), "give the schema"),
        (
            lambda: tr.sinks.Kafka("h:1", str, topics=["t"], value=tr.KafkaAvro("http://h", CLICK)),
            "needs the subject of its values",
        ),
        (lambda: tr.sinks.Kafka("h:1", "t", key="a", key_format="json"), "key_format is a tr.KafkaAvro or"),
        (lambda: tr.sinks.Kafka("h:1", "t", key_format=tr.KafkaAvro("http://h", CLICK)), "for what key= gives"),
        (
            lambda: tr.sources.Kafka("h:1", "t", schema=pa.schema([("id", pa.int64())]), key_format="text"),
            "in columns keys are bytes",
        ),
        (
            lambda: tr.sources.Kafka(
                "h:1", "t", format=tr.KafkaAvro("http://h", CLICK), schema=pa.schema([("usr", pa.string())])
            ),
            "'usr' is no field of the schema of KafkaAvro; it has user, page",
        ),
    ],
)
def test_a_wrong_argument_is_refused(make: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        make()


def test_a_missing_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(ConfigError, match=r'pip install "tailrace\[registry\]"'):
        tr.KafkaAvro("http://h").registry.schema(1)


@pytest.mark.servers
def test_a_job_writes_and_reads_a_topic_through_the_registry(kafka: Server, server: SchemaRegistryServer) -> None:
    topic = Topic(kafka, 2)
    env = tr.Environment(parallelism=2)
    clicks = [{"user": f"u{n}", "page": "/"} for n in range(10)]
    sink = tr.sinks.Kafka(kafka.url, topic.name, key="user", value=tr.KafkaAvro(server.url, CLICK))
    env.from_collection(clicks).sink_to(sink)
    tr.testing.run(env)
    assert list(server.subjects) == [f"{topic.name}-value"]
    topic.write([b"\0\0\0\0\x63bad"])
    form = tr.KafkaAvro(server.url, WIDER)
    env = tr.Environment(parallelism=2)
    read = env.from_source(
        tr.sources.Kafka(kafka.url, topic.name, until="latest", format=form), on_error=tr.Aside("bad")
    )
    good = read.sink_to(tr.sinks.Collect())
    bad = read.side_output("bad").map(lambda failed: failed.error).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(one["user"] for one in good.result()) == sorted(one["user"] for one in clicks)
    assert {one["count"] for one in good.result()} == {1}
    assert len(bad.result()) == 1 and "schema 99" in bad.result()[0]
    counts = pa.schema([("user", pa.string()), ("count", pa.int64())])
    columns = tr.sources.Kafka(kafka.url, topic.name, until={0: 1, 1: 1}, format=form, schema=counts)
    env = tr.Environment(parallelism=1)
    rows = env.from_source(columns).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert {row["count"] for row in rows.result()} == {1}
    env = tr.Environment(parallelism=1)
    env.from_source(tr.sources.Kafka(kafka.url, topic.name, until="latest", format=form)).sink_to(tr.sinks.Collect())
    with pytest.raises(
        tr.JobFailed, match=rf"offset \d+ of partition 0 of '{topic.name}' cannot be decoded .*schema 99"
    ):
        tr.testing.run(env)


@pytest.mark.servers
def test_keys_and_columns_go_through_the_registry(kafka: Server, server: SchemaRegistryServer) -> None:
    topic = Topic(kafka, 2)
    key = tr.KafkaAvro(server.url, {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]})
    value = tr.KafkaProtobuf(shop.Click, server.url)
    sink = tr.sinks.Kafka(kafka.url, topic.name, key=lambda click: {"id": click.at % 3}, key_format=key, value=value)
    sink.check()
    assert list(server.subjects) == [f"{topic.name}-key", f"{topic.name}-value"]
    env = tr.Environment(parallelism=2)
    clicks = env.from_collection([{"user": f"u{n}", "at": n, "button": {"name": "b"}} for n in range(9)])
    button = pa.field("button", pa.struct([("name", pa.string())]))
    clicks.to_columns(pa.schema([("user", pa.string()), ("at", pa.int64()), button])).sink_to(sink)
    tr.testing.run(env)
    read = tr.sources.Kafka(kafka.url, topic.name, until="latest", format=value, key_format=key, record=True)
    env = tr.Environment(parallelism=2)
    found = (
        env.from_source(read).map(lambda one: (one.key["id"], one.partition, one.value.at)).sink_to(tr.sinks.Collect())
    )
    tr.testing.run(env)
    assert sorted((id, at) for id, _, at in found.result()) == sorted((n % 3, n) for n in range(9))
    assert len({(id, partition) for id, partition, _ in found.result()}) == 3, "a key goes to one partition"
    schema = pa.schema([button, ("user", pa.string())])
    env = tr.Environment(parallelism=1)
    source = tr.sources.Kafka(kafka.url, topic.name, until="latest", format=value, schema=schema)
    rows = env.from_source(source).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted((row.user, row.button["name"]) for row in rows.result()) == [(f"u{n}", "b") for n in range(9)]


@pytest.mark.servers
def test_a_registry_that_goes_away_fails_the_attempt_and_sets_no_record_aside(
    kafka: Server, server: SchemaRegistryServer
) -> None:
    topic = Topic(kafka)
    encode = tr.KafkaAvro(server.url, CLICK).encoder("s")
    topic.write([encode(Click("a", "b"))])
    source = tr.sources.Kafka(kafka.url, topic.name, until="latest", format=tr.KafkaAvro(server.url))
    source.check = lambda: setattr(server, "away", True)  # type: ignore[method-assign]
    env = tr.Environment(parallelism=1, restart=tr.NoRestart())
    read = env.from_source(source, on_error=tr.Aside("bad"))
    bad = read.side_output("bad").sink_to(tr.sinks.Collect())
    read.sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match="schema 1: not now"):
        tr.testing.run(env)
    assert bad.result() == []


@pytest.mark.servers
def test_a_registry_that_refuses_is_named_before_the_job_runs(kafka: Server, server: SchemaRegistryServer) -> None:
    topic = Topic(kafka)
    server.login = "Basic nobody"
    for url, error in ((server.url, "Unauthorized"), ("http://me:secret-word@127.0.0.1:1", "does not answer")):
        form = tr.KafkaAvro(url, CLICK)
        for one in (
            tr.sources.Kafka(kafka.url, topic.name, format=form),
            tr.sinks.Kafka(kafka.url, topic.name, value=form),
        ):
            with pytest.raises(ConfigError, match=error) as refused:
                one.check()
            assert "secret-word" not in str(refused.value)


@pytest.mark.servers
def test_a_schema_that_is_refused_fails_before_the_job_runs(kafka: Server, server: SchemaRegistryServer) -> None:
    topic = Topic(kafka)
    tr.KafkaAvro(server.url, CLICK).check(f"{topic.name}-value")
    env = tr.Environment(parallelism=1)
    form = tr.KafkaAvro(server.url, record_of(USER, {"name": "age", "type": "int"}))
    env.from_collection([{"user": "a", "age": 1}]).sink_to(tr.sinks.Kafka(kafka.url, topic.name, value=form))
    with pytest.raises(ConfigError, match="Schema being registered is incompatible"):
        tr.testing.run(env)
