"""What a program needs that has no command line."""

from __future__ import annotations

import subprocess
import sys

from tests.installing import outside

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
        "import sys, tailrace.spark.shipping.executor, tailrace.runtime.worker.process, tailrace.spark.outpost.host\n"
    )
    program += (
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'typer', 'click', 'rich', 'pydantic'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=outside(), check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
