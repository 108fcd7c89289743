"""What the pages state as tables is what the code has: numbers, messages, states, settings, options, rooms, invariants."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main

import tailrace as tr
from tailrace.api import config
from tailrace.api.launch import JobHandle
from tailrace.api.sql.functions import ALIASES, FUNCTIONS, LAZY, REWRITTEN
from tailrace.cli.main import app
from tailrace.coordinator.durability import stopping
from tailrace.coordinator.durability.stopping import Happening
from tailrace.coordinator.job.failures import REACTIONS
from tailrace.coordinator.job.lifecycle import EDGES, JobStatus
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.view.job_snapshot import JobSnapshot
from tailrace.coordinator.view.progress import ProgressMaker
from tailrace.coordinator.view.slices import Slices, standby_figures
from tailrace.protocol import (
    deployment,
    handshake,
    hot_standby,
    recovery,
    replay,
    snapshot,
    standby,
    succession,
    termination,
)
from tailrace.protocol.deployment import AFTER, FailureKind, Phase
from tailrace.protocol.message import Message
from tailrace.protocol.message_codec import AnyMessage, FromWorker, Greeting, HeartMessage, ToWorker
from tailrace.runtime.driver.coordinator import JobRunner
from tailrace.runtime.job import Job
from tailrace.runtime.worker.main_loop import WorkerProcess
from tailrace.settings import KEYWORDS, SETTINGS, Parameter
from tailrace.state import format as state_format
from tailrace.state import manifest as state_manifest
from tailrace.state.manifest import Manifest
from tailrace.task.subtask.idleness import Reason
from tailrace.testing import faults

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "tailrace"
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDE = ROOT / "docs" / "guide"

UNITS = {"s": 1.0, "ms": 1e-3, "MiB": float(1 << 20), "KiB": 1024.0, "": 1.0}


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def tables(text: str) -> Iterator[list[list[str]]]:
    """The tables of a page, as rows of cells; the first row is the heading."""
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif rows:
            yield [row for row in rows if not re.fullmatch(r"[-: ]*", "".join(row))]
            rows = []


def table(path: Path, *heading: str) -> list[list[str]]:
    """The rows of the one table of a page with this heading."""
    found = [rows[1:] for rows in tables(read(path)) if rows[0] == list(heading)]
    assert len(found) == 1, f"{path.name} has {len(found)} tables {heading}"
    return found[0]


def code(cell: str) -> list[str]:
    """What stands in inline code in a cell."""
    return re.findall(r"`([^`]*)`", cell)


def quantity(text: str) -> float:
    """A value with its unit, in seconds, bytes or as it is."""
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * UNITS[unit]


# Numbers.


def numbers() -> list[Any]:
    found = []
    for page in PAGES:
        for rows in tables(read(page)):
            if rows[0] == ["number", "value", "in"]:
                found += [pytest.param(value, code(place)[0], id=code(place)[0]) for _, value, place in rows[1:]]
    return found


@pytest.mark.parametrize(("stated", "place"), numbers())
def test_a_number_is_that_of_the_code(stated: str, place: str) -> None:
    module, name, key = re.fullmatch(r"([\w.]+)\.([A-Z_]+)(?:\[\"(\w+)\"\])?", place).groups()  # type: ignore[union-attr]
    real = getattr(importlib.import_module(module), name)
    real = real if key is None else real[key]
    scales = (1e6, 1e9, 1.0) if stated.endswith("s") else (1.0,)
    assert any(abs(quantity(stated) * scale - real) < 1e-6 * real for scale in scales), f"{place} is {real}"


def test_the_limits_are_those_of_the_coordinator() -> None:
    stated = {code(name)[0]: quantity(value) for name, value, _ in table(DEPLOYMENT, "limit", "value", "for")}
    assert stated == {field.name: getattr(Limits(), field.name) / 1e6 for field in fields(Limits)}


# Conversations.

DEPLOYMENT = ROOT / "docs" / "protocols" / "deployment.md"
HANDSHAKE = ROOT / "docs" / "protocols" / "handshake.md"


PROTOCOLS = {
    module: DEPLOYMENT.with_name(f"{module.__name__.rpartition('.')[2]}.md")
    for module in (deployment, snapshot, recovery, replay, standby, hot_standby, succession, termination)
}


def catalogue(page: Path) -> dict[str, tuple[str, str]]:
    """Message -> (from, to), as a page has it."""
    return {code(row[0])[0]: (row[1], row[2]) for row in table(page, "message", "from", "to", "when")}


@pytest.mark.parametrize("module", PROTOCOLS, ids=lambda module: module.__name__)
def test_the_catalogue_has_every_message_of_its_module(module: Any) -> None:
    ours = {name for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, Message)}
    assert set(catalogue(PROTOCOLS[module])) == {n for n in ours if getattr(module, n).__module__ == module.__name__}


def test_the_catalogues_have_every_message_that_is_sent() -> None:
    stated = [name for page in PROTOCOLS.values() for name in catalogue(page)]
    assert sorted(stated) == sorted(kind.__name__ for kind in get_args(AnyMessage))


def test_the_catalogues_say_which_way_each_message_goes() -> None:
    stated = {name: ends for page in PROTOCOLS.values() for name, ends in catalogue(page).items()}
    upward, downward, first = (
        {kind.__name__ for kind in get_args(union)}
        for union in (FromWorker, ToWorker | deployment.Inspect, Greeting | HeartMessage)
    )
    between = {name for name, ends in stated.items() if ends == ("worker", "worker")}
    assert between == {"PeerHello", "OperatorEvent"}
    assert {name for name, ends in stated.items() if ends == ("worker", "coordinator")} == (upward | first) - between
    assert {name for name, ends in stated.items() if ends == ("coordinator", "worker")} == downward - between


def test_every_message_of_a_deployment_has_its_sender() -> None:
    text = inspect.getsource(deployment)
    from_worker = text[text.index("# From a worker.") : text.index("# From the coordinator.")]
    for name, (sender, receiver) in catalogue(DEPLOYMENT).items():
        if name in ("PeerHello", "OperatorEvent"):
            assert (sender, receiver) == ("worker", "worker")
        elif f"class {name}(" in from_worker:
            assert (sender, receiver) == ("worker", "coordinator"), name
        else:
            assert (sender, receiver) == ("coordinator", "worker"), name


@pytest.mark.parametrize("module", [snapshot, recovery, standby, termination], ids=lambda module: module.__name__)
def test_every_message_goes_the_way_that_its_module_draws(module: Any) -> None:
    drawn: dict[str, tuple[str, str]] = {}
    for line in (module.__doc__ or "").splitlines():
        if found := re.match(r"\s*(\w+)(?:\([^)]*\))?\s+->", line):
            drawn[found[1]] = ("worker", "coordinator")
        elif found := re.search(r"<-\s+(\w+)", line):
            drawn[found[1]] = ("coordinator", "worker")
    for name, way in catalogue(PROTOCOLS[module]).items():
        assert drawn[name] == way, name


RECOVERY = DEPLOYMENT.with_name("recovery.md")


def test_what_a_failure_leads_to_is_what_the_coordinator_does() -> None:
    rows = table(RECOVERY, "kind", "what has failed", "what follows")
    stated = {code(kind)[0]: follows for kind, _, follows in rows}
    assert stated == {kind.value: follows.value for kind, follows in REACTIONS.items()}
    assert set(REACTIONS) == set(FailureKind)


def test_the_phases_are_those_of_the_code() -> None:
    stated = {(row[0], code(row[1])[0], row[2]) for row in table(DEPLOYMENT, "phase", "message", "next phase")}
    assert stated == {(before.value, kind.__name__, after.value) for (before, kind), after in AFTER.items()}


def test_the_states_are_those_of_the_code() -> None:
    stated = {state: set(after.split(", ")) for state, after in table(DEPLOYMENT, "state", "next states")}
    assert stated == {state.name: {after.name for after in edges} for state, edges in EDGES.items() if edges}


def test_the_messages_of_the_handshake_have_these_sizes() -> None:
    token, nonces = bytes(handshake.TOKEN_MIN), (b"d" * handshake.NONCE_SIZE, b"a" * handshake.NONCE_SIZE)
    halves = {"dialer": handshake.Dialer(token, nonces[0]), "acceptor": handshake.Acceptor(token, nonces[1])}
    for _, sender, _, size in table(HANDSHAKE, "", "from", "message", "bytes"):
        [receiver] = set(halves) - {sender}
        message = halves[sender].outgoing()  # type: ignore[attr-defined]
        assert len(message) == int(size)
        halves[receiver].receive(message)  # type: ignore[attr-defined]
    assert all(half.done for half in halves.values())  # type: ignore[attr-defined]


def test_every_reason_of_a_refusal_is_reported() -> None:
    stated = {reason for reason, _ in table(HANDSHAKE, "reason", "found by")}
    text = inspect.getsource(JobRunner) + inspect.getsource(WorkerProcess)
    ours = set(re.findall(r'\w+\["(no \w+ of this job)"\]', text))
    assert len(ours) == 2
    assert stated == {reason.value for reason in handshake.Refusal} | ours


# Formats.

FORMATS = ROOT / "docs" / "formats" / "checkpoints.md"


def test_the_stages_of_a_stop_are_those_of_the_code() -> None:
    happenings = [one.value for one in Happening]
    rows = table(DEPLOYMENT.with_name("stopping.md"), "stage", *happenings)
    stated = {
        (row[0], happening): after
        for row in rows
        for happening, after in zip(happenings, row[1:], strict=True)
        if after
    }
    assert stated == {
        (stage.value, happening.value): after.value for (stage, happening), after in stopping.AFTER.items()
    }
    assert [row[0] for row in rows] == [one.value for one in stopping.Stage]


def test_the_fields_of_the_formats_are_those_of_the_code() -> None:
    kinds = {
        "field of the index": state_format.Index,
        "field of an operator": state_format.OperatorPart,
        "field of a block": state_format.BlockRef,
        "field of the manifest": Manifest,
    }
    for heading, kind in kinds.items():
        stated = [name for row in table(FORMATS, heading, "what it is") for name in code(row[0])]
        assert stated == list(kind.__struct_fields__), heading


def test_the_versions_and_marks_of_the_formats_are_those_of_the_code() -> None:
    rows = {name: code(mark) for name, mark, _ in table(FORMATS, "file", "mark", "version")}
    versions = {name: int(version) for name, _, version in table(FORMATS, "file", "mark", "version")}
    assert versions == {
        "state file": state_format.VERSION,
        "block of state": importlib.import_module("tailrace.state.codecs").VERSION,
        "manifest": state_manifest.VERSION,
        "savepoint": state_manifest.SAVEPOINT_VERSION,
    }
    assert rows["state file"] == [state_format.header()[:4].decode(), state_format.tail(_EMPTY, 0)[-4:].decode()]
    assert rows["manifest"] == ["tailrace-manifest"]
    sizes = {name: int(size) for name, size, _ in table(FORMATS, "part", "bytes", "what it holds") if size.isdecimal()}
    assert sizes == {"header": state_format.HEADER_SIZE, "footer": state_format.FOOTER_SIZE}


_EMPTY = state_format.Index("", 0, 0, 0, 0)


# The house.


def test_the_rooms_are_those_of_the_source() -> None:
    [block] = re.findall(r"```text\nsrc/tailrace/\n(.*?)```", read(ROOT / "ARCHITECTURE.md"), flags=re.S)
    above, below = block.split("~ waterline ~")
    stated = re.findall(r"^  ([\w.]+/?)", block, flags=re.M)
    rooms = [f"{path.name}/" for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"]
    files = [path.name for path in SOURCE.iterdir() if path.suffix == ".py" and path.name != "__main__.py"]
    assert sorted(stated) == sorted([*rooms, *files])
    contracts = tomllib.loads(read(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"]
    [waterline] = [one for one in contracts if one["name"].startswith("Nothing below the waterline")]
    for part, modules in ((above, "source_modules"), (below, "forbidden_modules")):
        assert {f"tailrace.{room}" for room in re.findall(r"^  (\w+)/", part, flags=re.M)} == set(waterline[modules])


def test_every_contract_of_the_linter_is_an_arrow() -> None:
    checks = {check for _, _, check in table(ROOT / "ARCHITECTURE.md", "from", "to", "checked by")}
    contracts = tomllib.loads(read(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"]
    assert checks == {f'"{one["name"]}"' for one in contracts} | {"`tests/test_house.py`"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_files_that_are_named_are_there(page: Path) -> None:
    """`task/channels/gate.py`, `tests/elements/golden_keys.json`: from the root, or from the source."""
    for name in re.findall(r"`((?:[\w.]+/)+[\w.]+\.(?:py|json|toml|md))`", read(page)):
        assert (ROOT / name).exists() or (SOURCE / name).exists(), f"{page.name}: there is no {name}"


def is_there(name: str) -> bool:
    """Whether a name with dots is a module or room of ours, or something in one."""
    place = SOURCE
    for part in name.split("."):
        if (place / f"{part}.py").exists():
            return True
        if not (place / part).is_dir():
            return place != SOURCE and re.search(rf"\b{part}\b", read(place / "__init__.py")) is not None
        place = place / part
    return True


def names_of_places(text: str) -> list[str]:
    """Modules, rooms and files of ours that are named in words: with dots, or as paths. What begins with `spark.` is mostly
    a setting of Spark."""
    rooms = {one.name for one in SOURCE.iterdir() if one.is_dir()} - {"spark"}
    dotted = re.findall(r"`(?:tailrace\.)?([a-z_]+(?:\.\w+)+)`", text)
    paths = re.findall(r"`((?:\w+/)+[\w.{},]*)`", text)
    return [name for name in (*dotted, *paths) if re.split(r"[./]", name)[0] in rooms]


def test_modules_that_are_named_are_there() -> None:
    """In docstrings and pages: who moves a file leaves its old name nowhere."""
    gone = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*SOURCE.rglob("*.py"), *PAGES]
        for name in names_of_places(read(path))
        if not ((SOURCE / name).exists() if "/" in name else is_there(name))
    ]
    assert gone == []


# The theory of operation.


def theory() -> str:
    text = read(ROOT / "ARCHITECTURE.md")
    headings = re.findall(r"^## (.*)$", text, flags=re.M)
    assert headings[0] == "Theory of operation", "it is the first section of the page"
    return text[text.index("## Theory of operation") : text.index(f"## {headings[1]}")]


def owners() -> dict[str, type]:
    """The classes that the theory names with their modules: `task.slice.machine:Slice`, perhaps with a field behind it."""
    found: dict[str, type] = {}
    for module, name in re.findall(r"`([\w.]+):(\w+)", theory()):
        owner = getattr(importlib.import_module(f"tailrace.{module}"), name)
        assert owner.__module__ == f"tailrace.{module}", f"{name} is defined in {owner.__module__}"
        assert found.setdefault(name, owner) is owner, f"{name} is the name of two classes"
    return found


def fields_of(owner: type) -> set[str]:
    """What an object of a class has: names of the class, declared fields, and attributes that its methods set."""
    found = set(dir(owner))
    for one in owner.__mro__[:-1]:
        found |= set(inspect.get_annotations(one))
        if one.__module__ == "typing":
            continue
        found |= {
            node.attr
            for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(one))))
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
        }
    return found


def states() -> list[tuple[str, str]]:
    """(states, fields) of all rows of the theory's tables of states."""
    return [
        (row[0], row[1]) for rows in tables(theory()) if rows[0] == ["state", "field", "meaning"] for row in rows[1:]
    ]


def test_the_fields_of_the_theory_are_there() -> None:
    known = owners()
    named = set(re.findall(r"`(?:[a-z][\w.]*:)?(_?[A-Z]\w*)\.(\w+)`", theory()))
    assert len(named) > 40
    assert [f"{owner}.{field}" for owner, field in sorted(named) if field not in fields_of(known[owner])] == []
    assert all(re.search(r"`[^`]*\w\.\w+`", fields) or state == "work" for state, fields in states())


@pytest.mark.parametrize(
    ("field", "kind"), [("Worker.phase", Phase), ("Idle.reason", Reason), ("Course.status", JobStatus)]
)
def test_the_states_of_the_theory_are_those_of_the_code(field: str, kind: type[Enum]) -> None:
    stated = [name for state, fields in states() if f"{field}`" in fields for name in code(state)]
    assert sorted(stated) == sorted(member.name for member in kind)


def test_the_phases_of_a_checkpoint_in_the_theory_are_those_of_the_code() -> None:
    assert f"names: {', '.join(deployment.PHASES)}." in " ".join(theory().split())


def test_each_step_of_a_story_names_a_module() -> None:
    stories = re.split(r"^### ", theory(), flags=re.M)[-3:]
    for story in stories:
        title, _, text = story.partition("\n")
        steps = re.split(r"^(\d+)\. ", text, flags=re.M)[1:]
        assert [int(number) for number in steps[::2]] == list(range(1, len(steps) // 2 + 1)), title
        assert [step for step in steps[1::2] if not re.search(r"`[\w/]+\.py`", step)] == [], title


# Invariants.


def test_every_invariant_is_stated_and_watched_where_the_formalism_says() -> None:
    documented = []
    for name, _, stated, watched in table(ROOT / "docs" / "formalism.md", "", "says", "stated in", "watched by"):
        [path] = code(stated)
        documented.append((name.strip("*"), path))
        assert code(watched), f"nothing watches {name}"
        for watch in code(watched):
            check_watch(watch, name)
    stated_there = {
        (name, path.relative_to(SOURCE).as_posix())
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r"Invariant ([A-Z]+\d+)", read(path))
    }
    assert sorted(documented) == sorted(stated_there)
    assert len({name for name, _ in documented}) == len(documented), "a name stands for two invariants"


def check_watch(watch: str, name: str) -> None:
    path, _, test = watch.partition("::")
    if test:
        functions = {node.name for node in ast.parse(read(ROOT / path)).body if isinstance(node, ast.FunctionDef)}
        assert test in functions, f"{name}: there is no {watch}"
        return
    owner, _, method = watch.partition(".")
    files = [*SOURCE.rglob("*.py"), *(ROOT / "search").rglob("*.py")]
    owners = [text for text in map(read, files) if re.search(rf"^class {owner}\b", text, flags=re.M)]
    assert owners and re.search(rf"^    def {method}\(", owners[0], flags=re.M), f"{name}: there is no {watch}"


# The guide.


HEADING = ("setting", "type", "default", "unit", "variable", "option of `tailrace run`", "meaning")


def test_the_settings_of_the_guide_are_those_of_the_code() -> None:
    def shown(one: Parameter) -> str:
        none = "None" if one.name in KEYWORDS else ""
        return (
            none if one.default is None else f'`"{one.default}"`' if isinstance(one.default, str) else f"{one.default}"
        )

    def quoted(text: str) -> str:
        return text and f"`{text}`"

    expected = [
        [quoted(one.name if one.name in KEYWORDS else ""), one.type, shown(one), one.unit]
        + [quoted(one.variable), quoted(one.option), one.meaning]
        for one in SETTINGS.values()
    ]
    assert table(GUIDE / "running.md", *HEADING) == expected


def test_the_keywords_of_an_environment_are_settings_with_these_defaults() -> None:
    parameters = inspect.signature(tr.Environment).parameters
    assert set(KEYWORDS) == set(parameters) - {"spark"}
    for name in KEYWORDS:
        if name != "parallelism":  # what the command or the process sets, else 2
            assert SETTINGS[name].default == parameters[name].default, name


def test_the_options_of_the_command_are_settings() -> None:
    command: Any = typer.main.get_command(app)
    options = [one for one in command.commands["run"].params if one.param_type_name == "option"]
    flags = [one.flag for one in SETTINGS.values() if one.option]
    assert sorted(flags) == sorted((one.secondary_opts or one.opts)[-1] for one in options)
    helps = {(one.secondary_opts or one.opts)[-1]: one.help for one in options}
    assert helps == {one.flag: one.help for one in SETTINGS.values() if one.option}


def test_the_variables_of_the_process_are_settings() -> None:
    """No other module has the name of one, but in texts, and each is read."""
    elsewhere = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "settings.py"]
    assert [path.name for path in elsewhere if re.search(r"[\"']TAILRACE_\w+[\"']", read(path))] == []
    known = {one.variable for one in SETTINGS.values() if one.variable}
    texts = [read(path) for path in [*SOURCE.rglob("*.py"), *GUIDE.glob("*.md")]]
    named = {name for text in texts for name in re.findall(r"\bTAILRACE_[A-Z_]*[A-Z]\b", text)}
    assert named - known == {"TAILRACE_LACKING"}, "a mark in a message of Spark"
    for name, one in SETTINGS.items():
        if one.variable:
            assert any(re.search(rf'SETTINGS\["{name}"\]\.(read|value)\(', text) for text in texts), one.variable


def test_a_sentence_of_a_setting_is_plain_in_a_terminal() -> None:
    assert SETTINGS["on_signal"].help == ("What SIGINT and SIGTERM do to jobs: cancel, or stop with a last checkpoint.")
    assert not [one.name for one in SETTINGS.values() if re.search(r"[`\[\]]", one.help) and "[4]" not in one.help]


def test_bytes_have_one_unit() -> None:
    """KiB, MiB and GiB, as settings count them: `memory="512m"` is 512 MiB."""
    where = [*PAGES, ROOT / "benchmarks" / "README.md", ROOT / "dev", *SOURCE.rglob("*.py")]
    found = [
        f"{path.name}: {text}" for path in where for text in re.findall(r"(?<!\S)[\d.,]+\s?[kKMGT]B\b", read(path))
    ]
    assert found == []


def test_the_members_of_a_job_are_those_of_its_handle() -> None:
    members = [one for row in table(GUIDE / "running.md", "member", "meaning") for one in code(row[0])]
    stated = {one.partition("(")[0] for one in members}
    handle = {**JobHandle.__annotations__, **vars(JobHandle)}
    promised = {name for name in handle if not name.startswith("_")}
    assert stated == promised | {name for name in vars(Job) if not name.startswith("_")}


def test_the_keys_of_metrics_are_those_of_a_job() -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(tr.sinks.Callback(lambda record: None))
    figures = tr.testing.run(env).metrics()
    for heading, real in (("key of `metrics()`", figures), ("key of a subtask", figures["subtasks"][0])):
        stated = [name for row in table(GUIDE / "running.md", heading, "meaning") for name in code(row[0])]
        assert sorted(stated) == sorted(real)


def test_what_is_said_of_a_slice_is_what_it_has() -> None:
    standby: set[str] = set()
    for kind in (tr.SliceStatus, tr.Failover):
        rows = table(GUIDE / "running.md", f"of a `tr.{kind.__name__}`", "meaning")
        assert sorted(name for row in rows for name in code(row[0])) == sorted(field.name for field in fields(kind))
        standby |= {name for row in rows if row[0] == "`standbys`" for name in code(row[1])}
    assert standby - {"tr.SliceStandby"} == {field.name for field in fields(tr.SliceStandby)}


def test_the_figures_under_tailrace_are_those_of_a_report() -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(tr.sinks.Callback(lambda record: None))
    report = ProgressMaker("id", "run", "name", env._plan(env._pending()), 0).make([], 1)
    rows = table(GUIDE / "running.md", 'under `"tailrace"`', "meaning")
    assert [code(row[0])[0] for row in rows] == list(report["tailrace"])
    [standby] = [row[1] for row in rows if row[0] == "`standby`"]
    figures = standby_figures(Slices((), (0, 0)))
    assert figures is not None and set(code(standby)) == set(figures)


def test_the_errors_are_those_there_are() -> None:
    stated = {code(row[0])[0].removeprefix("tr.") for row in table(GUIDE / "running.md", "error", "means", "raised")}
    public = {name: getattr(tr, name) for name in tr.__all__}
    errors = {name for name, one in public.items() if isinstance(one, type) and issubclass(one, Exception)}
    assert stated == errors - {"TailraceError"}


def test_the_settings_of_checkpoints_are_those_of_the_code() -> None:
    rows = table(GUIDE / "checkpoints.md", "setting", "default", "meaning")
    stated = {name: default for cell, default, _ in rows for name in code(cell)}
    defaults = {field.name: field.default for field in fields(tr.CheckpointConfig)}
    assert set(stated) == set(defaults)
    for name, default in stated.items():
        assert default == "" or ast.literal_eval(default.strip("`")) == defaults[name], name


def test_the_restart_strategies_are_those_of_the_code() -> None:
    stated = [code(row[0])[0] for row in table(GUIDE / "restarts.md", "strategy", "the job is started again")]
    for one in config.RESTARTS:
        given = ", ".join(f"{field.name}={field.default!r}" for field in fields(one))
        assert f"tr.{one.__name__}({given})" in stated
    assert len(stated) == len(config.RESTARTS)
    default = config.DEFAULT_RESTART
    given = ", ".join(f"{field.name}={getattr(default, field.name)!r}" for field in fields(default))
    assert f"`tr.{type(default).__name__}({given})`" in read(GUIDE / "restarts.md")


def test_the_parts_of_a_checkpoint_are_in_the_guide() -> None:
    text = read(GUIDE / "checkpoints.md")
    assert [field.name for field in fields(tr.Checkpoint) if f"`{field.name}`" not in text] == []


def test_the_kinds_of_faults_are_those_of_the_simulator() -> None:
    rows = table(GUIDE / "testing.md", "kind", "what happens at that turn")
    assert [code(row[0])[0].strip('"') for row in rows] == list(get_args(faults.Kind))


@pytest.mark.parametrize("command", ["checkpoint", "inspect"])
def test_the_options_of_other_commands_are_in_the_guide(command: str) -> None:
    group: Any = typer.main.get_command(app)
    text = read(GUIDE / "checkpoints.md")
    options = [one.opts[-1] for one in group.commands[command].params if one.param_type_name == "option"]
    assert [one for one in options if one not in text] == []


@pytest.mark.parametrize("kind", ["sources", "sinks"])
def test_every_connector_is_in_the_guide(kind: str) -> None:
    module = getattr(tr, kind)
    ours = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "") == module.__name__
        and name[0].isupper()
        and name not in {"Batches", "ArrowFiles", "Result"}  # for those who write one
    }
    ours -= {"Collection"} if kind == "sources" else set()  # by its verb, env.from_collection
    text = read(GUIDE / "sources-and-sinks.md")
    assert [name for name in sorted(ours) if f"`tr.{kind}.{name}(" not in text] == []


def verbs() -> list[str]:
    streams = (tr.DataStream, tr.KeyedStream, tr.ConnectedStreams, tr.WindowedStream)
    return sorted({name for kind in streams for name in vars(kind) if not name.startswith("_")})


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_is_in_the_guide(verb: str) -> None:
    pattern = rf"\.{verb}\b" if isinstance(getattr(tr.DataStream, verb, None), property) else rf"\b{verb}\("
    assert any(re.search(pattern, read(page)) for page in GUIDE.glob("*.md"))


def test_the_functions_of_sql_are_those_that_are_translated() -> None:
    page = (GUIDE / "sql.md").read_text(encoding="utf-8")
    table = page.partition("| function | notes |")[2].partition("\n\n")[0].replace("\\|", "\0")
    rows = [row.split("|")[1] for row in table.splitlines() if row]
    named = [name.replace("\0", "|") for row in rows for name in re.findall("`([^`]+)`", row)]
    assert sorted(named) == sorted(map(str, {*FUNCTIONS, *LAZY, *REWRITTEN, *ALIASES}))


def test_the_options_of_a_loop_are_those_of_its_verbs() -> None:
    heading = ("option of `iterate` and `iterate_with_feedback`", "default", "meaning")
    stated = {name: default for cell, default, _ in table(GUIDE / "loops.md", *heading) for name in code(cell)}
    for verb in (tr.DataStream.iterate, tr.DataStream.iterate_with_feedback):
        options = {n: p.default for n, p in inspect.signature(verb).parameters.items() if p.kind is p.KEYWORD_ONLY}
        if verb is tr.DataStream.iterate:
            options["feedback_schema"] = None  # it has no feedback of another type, as the table states
        assert {name: ast.literal_eval(default.strip("`")) for name, default in stated.items()} == options
    text = read(GUIDE / "loops.md")
    for kind in (tr.Rounds, tr.Spill):
        given = [f"{field.name}={field.default!r}" for field in fields(kind)]
        assert f"tr.{kind.__name__}({', '.join(given)})".replace(str(64 << 20), "64 << 20") in text


def test_the_members_of_a_scope_are_those_of_the_code() -> None:
    stated = {one.partition("(")[0] for cell, _ in table(GUIDE / "loops.md", "member", "meaning") for one in code(cell)}
    assert stated == {name for name in vars(tr.StreamScope) if not name.startswith("_")}


@pytest.mark.parametrize("name", tr.__all__)
def test_every_public_name_says_what_it_is(name: str) -> None:
    value = getattr(tr, name)
    assert (value.__doc__ or "").strip(), f"tr.{name} has no docstring"
    if isinstance(value, type) and value.__module__ == "tailrace.api.functions":
        silent = [m for m, f in vars(value).items() if not m.startswith("_") and callable(f) and not f.__doc__]
        assert silent == [], f"tr.{name}: {silent}"


# Links.


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^(```|~~~).*?^\1$", "", read(path), flags=re.M | re.S)
    titles = [re.sub(r"`", "", title) for title in re.findall(r"^#+ (.*)$", text, flags=re.M)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]*#[^)\s]*)\)", read(page)):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            assert anchor in anchors((page.parent / path) if path else page), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_reader_of_a_page_has_all_it_speaks_of(page: Path) -> None:
    assert not re.search(r"/work/|\.\./shared|/tmp/|/home/|/root/", read(page))


def test_the_keys_of_metrics_are_those_of_the_code() -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(tr.sinks.Collect())
    job = tr.testing.run(env)
    figures = job.metrics()
    documented = {key for row in table(GUIDE / "running.md", "key of `metrics()`", "meaning") for key in code(row[0])}
    assert documented == set(figures) | {"restarts"}
    documented = {key for row in table(GUIDE / "running.md", "key of a subtask", "meaning") for key in code(row[0])}
    assert documented == set(figures["subtasks"][0])


def test_the_parts_of_a_snapshot_are_in_the_guide() -> None:
    page = (GUIDE / "page.md").read_text(encoding="utf-8").partition("## A snapshot")[2]
    named = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert named[: len(JobSnapshot.__struct_fields__)] == list(JobSnapshot.__struct_fields__)
