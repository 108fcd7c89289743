"""The documentation is true: its examples run, its output is what they print, its links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pyspark import cloudpickle

import tailrace as tr
from tailrace.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [README, CONTRIBUTING, *DOCS]
NOT_RUN = {"mermaid", "toml", "sh", "dockerfile"}
NEEDS = re.compile(r"<!-- needs: (\w+) -->")
ADDRESSES = {
    "kafka": "kafka.example:9092",
    "nats": "nats://shop.example:4222",
    "postgres": "postgresql://shop@db.example/shop",
    "valkey": "redis://shop.example:6379/0",
}
"""Server that a block may need, by its fixture -> its address on the pages, in whose place a test has its own."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page. `line` is the number of its first line of text."""

    language: str
    text: str
    line: int
    needs: str = ""
    """What it needs to run: "spark", or a server."""
    file: str = ""
    """The name of the file that holds the block, by the page."""


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page, in order. Raises `AssertionError` for one that is not closed."""
    found: list[Block] = []
    fence = language = file = ""
    start = indent = 0
    needs, before, inside = "", "", list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        opening = re.match(r"\s*(`{3,}|~{3,})\s*(\S*)", line)
        if fence:
            if stripped == fence:
                body = "\n".join(one[indent:] for one in inside)
                found.append(Block(language, f"{body}\n" if inside else "", start, needs, file))
                fence = ""
            else:
                inside.append(line)
        elif opening:
            fence, language = opening[1], opening[2]
            start, indent = number + 1, len(line) - len(line.lstrip())
            needed = NEEDS.fullmatch(before)
            needs, inside = "" if needed is None else needed[1], []
            named = re.fullmatch(r"<!-- file: (\w+\.py) -->", before)
            file = "" if named is None else named[1]
        if stripped:
            before = stripped
    assert not fence, f"the block at line {start} is not closed"
    return found


def needs_of(path: Path) -> set[str]:
    """What the blocks of a page need."""
    return {block.needs for block in blocks_of(path.read_text())}


def prose_of(text: str) -> str:
    """A page without its fenced blocks and its inline code."""
    without = re.sub(r"^[ ]*(`{3,}|~{3,}).*?^[ ]*\1[ ]*$", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", without)


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run_page(path: Path, there: Mapping[str, str]) -> None:
    """Runs the Python blocks of a page in order in one module, without those that need what is not there: Spark, or a
    server, each with its address."""
    module = types.ModuleType(re.sub(r"\W", "_", f"page_{page_id(path)}"))
    sys.modules[module.__name__] = module  # classes of the page can be pickled
    cloudpickle.register_pickle_by_value(module)
    files = [block for block in blocks_of(path.read_text()) if block.file]
    for block in files:
        Path(block.file).write_text(block.text)
    sys.path.insert(0, str(Path.cwd()))
    try:
        printed: str | None = None
        for block in blocks_of(path.read_text()):
            if block.language == "python":
                printed = _run(block, path, module, there) if not block.needs or block.needs in there else None
            elif block.language == "text" and printed is not None:
                assert printed == block.text, f"{page_id(path)}:{block.line}: this is printed:\n{printed}"
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[module.__name__]
        sys.path.remove(str(Path.cwd()))
        for block in files:
            sys.modules.pop(block.file.removesuffix(".py"), None)


def _run(block: Block, path: Path, module: types.ModuleType, there: Mapping[str, str]) -> str:
    """What the block prints. Lines are counted as in the page, so that a traceback points into it."""
    text = block.text
    for server in there.keys() & ADDRESSES:
        text = text.replace(ADDRESSES[server], there[server])
    code = compile("\n" * (block.line - 1) + text, str(path), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, vars(module))
    return out.getvalue()


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_page(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(path, {})


@pytest.mark.spark
@pytest.mark.parametrize("path", [p for p in PAGES if "spark" in needs_of(p)], ids=page_id)
def test_page_with_spark(path: Path, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(path, {"spark": ""})


@pytest.mark.servers
@pytest.mark.parametrize("path", [p for p in PAGES if needs_of(p) & ADDRESSES.keys()], ids=page_id)
def test_page_with_servers(
    path: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(path, {name: request.getfixturevalue(name).url for name in needs_of(path) & ADDRESSES.keys()})


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_blocks_are_of_known_kinds(path: Path) -> None:
    before: Block | None = None
    for block in blocks_of(path.read_text()):
        where = f"{page_id(path)}:{block.line}"
        assert block.language in {"python", "text", "console", *NOT_RUN}, f"{where}: a block of {block.language!r}"
        if block.needs:
            assert block.language == "python", f"{where}: only Python blocks need anything"
            assert block.needs in {"spark", *ADDRESSES}, f"{where}: nobody knows {block.needs}"
        if block.language == "console":
            for command in _commands(block):
                _check_command(command, where)
        if block.language == "text":
            assert before is not None and before.language == "python", f"{where}: output of no Python block"
        before = block


def _commands(block: Block) -> Iterator[list[str]]:
    for line in block.text.splitlines():
        if line.startswith("$ "):
            yield shlex.split(line[2:], comments=True)


def _check_command(words: list[str], where: str) -> None:
    program, *args = words
    if program == "./dev":
        assert args and args[0] in dev_commands(), f"{where}: ./dev knows no {args}"
    elif program == "tailrace":
        _check_tailrace(args, where)
    else:
        assert program in {"git", "cd", "python"}, f"{where}: {program} is not a command of a reader of these pages"


def _check_tailrace(args: list[str], where: str) -> None:
    """Checks that a command of `tailrace` exists, and takes these options and arguments."""
    group: Any = typer.main.get_command(app)
    if args in (["--help"], ["--version"]):
        return
    assert args and args[0] in group.commands, f"{where}: tailrace knows no {args}"
    group.commands[args[0]].make_context(args[0], args[1:])  # raises a usage error


def dev_commands() -> set[str]:
    """What `./dev help` offers."""
    printed = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return set(re.findall(r"^\s*\./dev (\w+)", printed, flags=re.M))


LINKING = [README, CONTRIBUTING, ROOT / "ARCHITECTURE.md", *DOCS]


@pytest.mark.parametrize("path", LINKING, ids=page_id)
def test_links_lead_to_files(path: Path) -> None:
    for target in re.findall(r"\]\(\s*<?([^)\s>]+)", prose_of(path.read_text())):
        if re.match(r"[a-z][a-z0-9+.-]*:|#", target):
            continue
        assert (path.parent / target.partition("#")[0]).is_file(), f"{page_id(path)} links to {target}"


@pytest.mark.parametrize("name", tr.__all__)
def test_every_public_name_is_in_the_guide(name: str) -> None:
    pages = [path for path in DOCS if path.is_relative_to(ROOT / "docs" / "guide")]
    assert any(re.search(rf"\btr\.{name}\b", path.read_text()) for path in pages)


def test_decisions_are_numbered_one_by_one() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == [*range(1, len(pages) + 1)]
    for number, page in enumerate(pages, 1):
        assert page.read_text().startswith(f"# {number}. "), page.name


def test_invariants_of_the_code_are_those_of_the_formalism() -> None:
    stated = re.findall(r"\*\*([A-Z]+\d+)\*\*", (ROOT / "docs" / "formalism.md").read_text())
    code = [path.read_text() for path in sorted((ROOT / "src").rglob("*.py"))]
    kept = {name for text in code for name in re.findall(r"Invariant ([A-Z]+\d+)", text)}
    assert sorted(kept - set(stated)) == [], "not in docs/formalism.md"
    assert sorted(set(stated) - kept) == [], "not in the code"


def test_blocks_are_found() -> None:
    text = "a\n```python\nx = 1\n```\n\n  ```text\n    y\n  ```\n<!-- needs: spark -->\n\n```python\n```\n"
    assert blocks_of(text) == [
        Block("python", "x = 1\n", 3, ""),
        Block("text", "  y\n", 7, ""),
        Block("python", "", 12, "spark"),
    ]


@pytest.mark.parametrize("line", ["ls", "./dev fly", "tailrace walk", "tailrace run a.py --conf"])
def test_unknown_commands_are_refused(line: str) -> None:
    with pytest.raises(Exception):
        _check_command(["tailrace", "run", "--nothing", "a.py"] if line.endswith("--conf") else shlex.split(line), "")


def test_the_servers_for_docker_are_those_that_the_guide_names() -> None:
    import yaml

    services = yaml.safe_load((ROOT / "docs" / "compose" / "servers.yaml").read_text())["services"]
    assert services.keys() == {"kafka", "postgres", "redis", "nats"}
    for service in services.values():  # reached from this machine alone: nothing asks for a password
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
