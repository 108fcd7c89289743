"""A password inside a URL is in no text that people read."""

from __future__ import annotations

import dataclasses
import logging
import pickle
import re
import string
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import tailrace as tr
from tailrace.cli.main import app
from tailrace.cli.showing import echo
from tailrace.errors import InternalError, short_repr
from tailrace.graph.explain import as_mermaid, as_text
from tailrace.log import log
from tailrace.passwords import hide_passwords
from tailrace.task.contract.usercode import user_error, whole_traceback

SECRET = "hunt3r2"
REDIS = f"redis://me:{SECRET}@db.example:6379/0"
URLS = (
    REDIS,
    f"redis://:{SECRET}@db",
    f"postgresql+asyncpg://me:{SECRET}@db:5432/shop",
    f"jdbc:postgresql://db/shop?user=me&password={SECRET}&ssl=true",
    f"s3://AKIAXYZ:1/{SECRET}/+x@bucket/path",
    f"http://proxy-user:a@b/{SECRET}@proxy:3128",
    f"ftp://me@corp.example:{SECRET}@files/x",
    f"https://store.example/blob?sv=1&sig={SECRET}",
    f"https://store.example/blob?X-Amz-Signature={SECRET}&X-Amz-Date=1",
    f"abfss://container@account/x?access_token={SECRET}",
    f"http://[::1]:80/,redis://me:{SECRET}@db",
)
LEFT = (
    "hdfs://namenode:8020/user=me@corp/x",
    "http://[::1]:8080/a@b",
    "abfss://container@account.dfs.core.windows.net/x",
    "s3a://bucket/a:b/c",
    "spark://host:7077",
    "no URL: me:word@host",
    "https://example.com/?page=2&design=blue#x",
)


# The helper.

PARTS = st.text(string.ascii_letters + string.digits + "-._~", min_size=1, max_size=8)
PASSWORDS = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=12).map(
    lambda text: f"x{text}{SECRET}"
)
SCHEMES = st.sampled_from(
    ["redis", "rediss", "postgresql+psycopg", "s3", "S3A", "http", "https", "ftp", "amqp", "mongodb+srv"]
)
AROUND = st.text(st.characters(exclude_categories=["C"]), max_size=20)


@given(AROUND, SCHEMES, PARTS, PASSWORDS, PARTS, st.booleans(), AROUND)
@settings(max_examples=400, deadline=None)
def test_no_password_of_any_url_is_left_in_a_text(
    before: str, scheme: str, user: str, password: str, host: str, escaped: bool, after: str
) -> None:
    secret = quote(password, safe="") if escaped else password
    for text in (
        f"{before} {scheme}://{user}:{secret}@{host}/x {after}",
        f"{before}'{scheme}://{user}:{secret}@{host}'{after}",
    ):
        shown = hide_passwords(text)
        assert SECRET not in shown and secret not in shown
        assert f"{scheme}://{user}:***@" in shown and hide_passwords(shown) == shown
        assert SECRET not in short_repr(text, 30) and SECRET not in short_repr([text], 200)


@pytest.mark.parametrize("url", URLS)
def test_where_people_put_passwords_they_are_hidden(url: str) -> None:
    shown = hide_passwords(f"cannot reach {url}, and gives up")
    assert SECRET not in shown and "***" in shown
    assert shown.startswith("cannot reach ") and shown.endswith(" and gives up")


@pytest.mark.parametrize("text", LEFT)
def test_what_has_no_password_stays_as_it_is(text: str) -> None:
    assert hide_passwords(text) == text


# All ways out.


def fails(value: Any) -> Any:
    raise ValueError(f"cannot reach {value} or {REDIS}")


def failed_job() -> str:
    env = tr.Environment(parallelism=1)
    env.from_collection([REDIS]).map(fails, name=f"to {REDIS}").sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env)
    return f"{job.exception()} {job.exception()!r} {job.trace} {job!r}"


def explained() -> str:
    env = tr.Environment(parallelism=1, checkpoint=tr.CheckpointConfig(REDIS))
    env.from_collection([1], name=REDIS).map(lambda n: n, uid=f"u {REDIS}").sink_to(tr.sinks.Collect(), name=REDIS)
    plan = env._plan(env._pending())
    picture = f"{env.graph().svg()} {env.graph().figures()}"
    return f"{env.explain()} {as_text(plan)} {as_mermaid(plan)} {env!r} {picture}"


def raised() -> str:
    error = tr.ConfigError(f"{REDIS} is wrong")
    again = pickle.loads(pickle.dumps(error))
    user = user_error(ValueError(REDIS), "op", 0, {"url": REDIS}, written=hide_passwords(REDIS))
    inner = InternalError(REDIS, [REDIS])
    return f"{error} {error!r} {error.args} {again!r} {user} {user.record} {inner} {tr.JobFailed(REDIS, job='j')}"


def raised_from_a_line_with_a_url() -> str:
    try:
        raise ValueError("redis://me:hunt3r2@db.example")
    except ValueError as error:
        return f"{whole_traceback(error)} {user_error(error, 'op', 0)}"


def dry_run() -> str:
    return f"{tr.RestoreCheck(REDIS, (REDIS,), (), (), ())} {tr.RestoreCheck(REDIS, (), (), (), ())!r}"


def checkpoints() -> str:
    return repr([tr.CheckpointConfig(REDIS), dataclasses.replace(tr.CheckpointConfig("x"), dir=REDIS)])


def inspected() -> str:
    ran = [CliRunner().invoke(app, ["inspect", *args, REDIS]) for args in ([], ["--json"])]
    return " ".join(f"{one.output} {one.exception}" for one in ran)


WAYS: dict[str, Callable[[], str]] = {
    "a job that fails": failed_job,
    "plans": explained,
    "errors": raised,
    "tracebacks": raised_from_a_line_with_a_url,
    "dry runs": dry_run,
    "settings": checkpoints,
    "tailrace inspect": inspected,
}


@pytest.mark.parametrize("way", WAYS)
def test_no_way_out_shows_a_password(way: str) -> None:
    text = WAYS[way]()
    assert SECRET not in text and (way == "tailrace inspect" or "://" in text)


def test_the_log_shows_none(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log.info("reads %s", REDIS)
        log.warning("%s is slow", REDIS)
        try:
            fails(REDIS)
        except ValueError:
            log.exception("lost")
    assert caplog.text.count("me:***@") >= 4 and SECRET not in caplog.text


def test_a_command_prints_none(capsys: pytest.CaptureFixture[str]) -> None:
    echo(REDIS)
    echo(f'{{"path": "{REDIS}"}}', err=True)
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err and "me:***@db" in shown.out and "me:***@db" in shown.err


def test_the_settings_and_checkpoints_of_users_hide_it_and_keep_it() -> None:
    """Each public class whose repr is made of its fields."""
    seen = set()
    public = (getattr(space, name) for space in (tr, tr.testing) for name in dir(space))
    for kind in filter(dataclasses.is_dataclass, public):
        made = object.__new__(kind)  # type: ignore[arg-type]
        texts = [field.name for field in dataclasses.fields(kind) if re.search(r"\bstr\b", str(field.type))]
        for field in dataclasses.fields(kind):
            object.__setattr__(made, field.name, REDIS if field.name in texts else None)
        if {"dir", "path", "place"} & set(texts):
            seen.add(made.__class__.__name__)
            assert SECRET not in repr(made), kind
            assert SECRET in str([getattr(made, name) for name in texts])
    assert {"CheckpointConfig", "Checkpoint", "Savepoint", "RestoreCheck", "Spill"} <= seen


def test_a_token_of_nats_is_hidden() -> None:
    text = "nats://to-ken@a:4222, tls://to-ken@b and nats://me:to-ken@c, of nats://d:4222 with redis://me@e"
    shown = "nats://***@a:4222, tls://***@b and nats://me:***@c, of nats://d:4222 with redis://me@e"
    assert hide_passwords(text) == shown == hide_passwords(shown)
