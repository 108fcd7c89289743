"""What a program loads: what it uses, and nothing of the command line."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import tailrace as tr
from tests.installing import outside

LOADED = """
import json, sys
def loaded():
    return [name for name in sys.modules if name.partition(".")[0] in NAMES]
NAMES = "tailrace", "numpy", "pyarrow", "msgspec", "pyspark", "pandas"
import tailrace as tr
at_import = loaded()
tr.Environment, tr.KeyedProcessFunction, tr.ValueState, tr.Count
with_verbs = loaded()
from tailrace import *
print(json.dumps([at_import, with_verbs, sorted(name for name in tr.__all__ if name in globals()), dir(tr)]))
"""

PROGRAM = """
import sys
import tailrace as tr

class Reached(tr.KeyedProcessFunction):
    best = tr.ValueState(int, default=99)

    def process(self, value, ctx):
        if value < self.best.value:
            self.best.value = value
            yield value

def loop(reached):
    nearer = reached.key_by(lambda n: n % 3).process(Reached())
    return nearer.map(lambda n: n - 1).filter(lambda n: n >= 0), nearer

env = tr.Environment(parallelism=2, progress=True)
found = env.from_collection(range(20)).iterate(loop)
sink = found.sink_to(tr.sinks.Collect())
tr.testing.simulate(env, seed=3)
assert sink.result()
print(sorted({name.partition(".")[0] for name in sys.modules} & {"typer", "click", "rich", "pydantic"}))
"""


def test_a_program_in_the_simulator_imports_nothing_of_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=outside(), check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_a_worker_imports_nothing_of_the_command_line() -> None:
    program = (
        "import sys, tailrace.spark.shipping.executor_id, tailrace.runtime.worker.main_loop\n"
        "import tailrace.spark.outpost.host\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'typer', 'click', 'rich', 'pydantic'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=outside(), check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_a_name_is_imported_when_it_is_used_first() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, env=outside(), check=True)
    at_import, with_verbs, starred, listed = json.loads(done.stdout)
    assert sorted(at_import) == ["tailrace", "tailrace.lazynames", "tailrace.versions"]
    needless = ("tailrace.connectors", "tailrace.coordinator", "tailrace.spark", "pyspark", "pandas", "pyarrow.parquet")
    assert [name for name in with_verbs if name.startswith(needless)] == []
    assert starred == sorted(tr.__all__) and set(listed) >= {*tr.__all__, "__version__"}


def test_type_checkers_see_the_names_that_there_are() -> None:
    """Type checkers do not read the table by which names are found, but imports that no program makes."""
    tree = ast.parse(Path(str(tr.__file__)).read_text(encoding="utf-8"))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    seen = {one.asname: str(node.module) for node in imported for one in node.names if one.asname}
    assert seen.keys() == set(tr.__all__)
    for name, module in seen.items():
        assert getattr(tr, name) is getattr(sys.modules[module], name)


def test_rooms_are_found_behind_the_package() -> None:
    program = (
        "import tailrace as tr; print(tr.errors.JobFailed is tr.JobFailed, tr.graphs.__name__, 'graphs' in dir(tr))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=outside(), check=False)
    assert (done.returncode, done.stdout) == (0, "True tailrace.graphs True\n"), done.stderr
