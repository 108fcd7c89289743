"""What is secret stays out of texts: of settings, of errors, of logs."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
import traceback
from collections.abc import Iterator
from typing import Any

import fsspec.core
import msgspec
import pytest

import tailrace as tr
from tailrace.spark.data.places import FilePlace
from tailrace.storage.opening import open_folder

SECRET = re.compile(r"token|secret|password|credential|options$")
"""Names of fields that hold what others must not see, or what a user has given to a filesystem."""
KEY_OF_TLS = ("Tls", "key")


def classes() -> Iterator[type]:
    """All classes of the package."""
    for module in pkgutil.walk_packages(tr.__path__, "tailrace."):
        if not module.name.endswith(("__main__", "tailrace_daemon")):
            found = vars(importlib.import_module(module.name)).values()
            yield from (one for one in found if isinstance(one, type) and one.__module__ == module.name)


def fields_shown(kind: type) -> list[str]:
    """The fields that are in the text of an object of a class with declared fields."""
    if dataclasses.is_dataclass(kind):
        params: Any = kind.__dataclass_params__
        return [one.name for one in dataclasses.fields(kind) if one.repr and params.repr]
    if issubclass(kind, msgspec.Struct):
        return [] if "__repr__" in vars(kind) else list(kind.__struct_fields__)
    fields = getattr(kind, "_fields", ()) if issubclass(kind, tuple) else ()
    return list(fields) if isinstance(fields, tuple) and kind.__repr__.__qualname__.startswith("namedtuple") else []


def test_no_class_shows_a_secret() -> None:
    found = list(classes())
    assert {"CheckpointConfig", "WorkerConfig", "Tls", "Host", "FilePlace", "JobSpec"} <= {
        one.__name__ for one in found
    }
    shown = [(one.__name__, name) for one in found for name in fields_shown(one)]
    assert [(kind, name) for kind, name in shown if SECRET.search(name) or (kind, name) == KEY_OF_TLS] == []


def declared_fields(kind: type) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [one.name for one in dataclasses.fields(kind)]
    found = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", ())
    return list(found) if isinstance(found, tuple) else []


def made(kind: Any, fields: dict[str, Any]) -> Any:
    """An object with these values in its fields, past the checks of its class."""
    if issubclass(kind, tuple):
        return tuple.__new__(kind, fields.values())
    if issubclass(kind, msgspec.Struct):
        return kind(**fields)
    one = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(one, name, value)
    return one


def test_the_value_of_a_secret_field_is_in_no_text_of_its_object() -> None:
    """The value is in no text where a class writes its text itself, either."""
    shown: dict[str, bool] = {}
    for kind in classes():
        fields = {name: "hunter2" if SECRET.search(name) else 7 for name in declared_fields(kind)}
        if "hunter2" in fields.values():
            one = made(kind, fields)
            shown[kind.__name__] = "hunter2" in f"{one!r} {one!s}"
    assert {"CheckpointConfig", "JobSpec"} <= set(shown)
    assert [name for name, is_shown in shown.items() if is_shown] == []


OPTIONS = {"key": "AKIAXYZ", "secret": "hunter2", "client_kwargs": {"aws_session_token": "tok3n"}}


def secrets_in(text: str) -> list[str]:
    return [one for one in ("AKIAXYZ", "hunter2", "tok3n") if one in text]


def test_settings_do_not_show_the_options_of_a_storage() -> None:
    config = tr.CheckpointConfig("memory://b/x", storage_options=OPTIONS)
    env = tr.Environment(parallelism=1, checkpoint=config)
    env.from_collection([1]).sink_to(tr.sinks.Collect())
    texts = (repr(config), str(config), repr(env), env.explain(), repr(dataclasses.replace(config, keep=5)))
    assert [found for text in texts for found in secrets_in(text)] == []
    assert config.storage_options == OPTIONS and "memory://b/x" in repr(config)
    assert secrets_in(repr(FilePlace("s3://b/x", OPTIONS))) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: tr.Environment(checkpoint={"dir": "x", "storage_options": OPTIONS}),  # type: ignore[arg-type]
        lambda: tr.CheckpointConfig("x", storage_options=OPTIONS, interval=-1),
        lambda: tr.CheckpointConfig("x", storage_options=OPTIONS, keep=0),
    ],
)
def test_errors_of_settings_do_not_show_them(make: Any) -> None:
    with pytest.raises(tr.ConfigError) as caught:
        make()
    assert secrets_in(str(caught.value)) == []


def test_an_error_of_a_filesystem_does_not_show_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(url: str, **options: Any) -> None:
        raise TypeError(f"cannot take {options}")

    monkeypatch.setattr(fsspec.core, "url_to_fs", refusing)
    with pytest.raises(tr.ConfigError, match=r"cannot take .*secret") as caught:
        open_folder("s3://b/x", OPTIONS)
    assert secrets_in("".join(traceback.format_exception(caught.value))) == []


def test_a_wrong_job_with_checkpoints_does_not_show_them() -> None:
    env = tr.Environment(parallelism=1, checkpoint=tr.CheckpointConfig("x", storage_options=OPTIONS))
    env.from_collection([1]).map(lambda n: 1 // 0).sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env)
    assert job.exception() is not None
    assert secrets_in(f"{job.exception()} {job!r} {job.trace} {job.metrics()}") == []
