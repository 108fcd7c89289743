"""`python -m benchmarks chain|keyed|checkpoint|recovery ...`: one JSON line per run on standard output."""

from __future__ import annotations

import argparse
import json
import os
import statistics
from dataclasses import asdict, replace
from typing import Any

from . import measure, recovery
from .measure import Spec
from .recovery import RecoverySpec
from .state import StateSpec


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    p.add_argument("workload", choices=["chain", "keyed", "checkpoint", "recovery"])
    p.add_argument("--form", choices=["rows", "columns"], default="rows", help="ours; peers run rows")
    p.add_argument("--parallelism", type=int, default=2)
    p.add_argument("--records", type=int, help="default: by workload and system, for 10 s or more")
    p.add_argument(
        "--function",
        choices=["aggregate", "process"],
        default="aggregate",
        help="keyed, ours: the built-in aggregate or a KeyedProcessFunction",
    )
    p.add_argument(
        "--peer",
        action="append",
        choices=["bytewax", "handwritten"],
        default=[],
        help="run this one too; may be given several times",
    )
    p.add_argument("--no-ours", action="store_true", help="run the peers only")
    p.add_argument("--repeat", type=int, default=1, metavar="K")
    p.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a tuning knob of a system, see README.md"
    )
    return p


def main() -> None:
    cli = parser()
    args = cli.parse_args()
    options = dict(s.split("=", 1) for s in args.set)
    if args.workload == "recovery":
        return run_recovery(RecoverySpec.of(options, parallelism=args.parallelism))
    if args.workload == "checkpoint":
        return run_state(args, options) if "state" in options else run_checkpoint(args, options)
    if args.no_ours and not args.peer:
        cli.error("--no-ours needs a --peer")
    if args.function == "process" and args.form == "columns":
        cli.error("a KeyedProcessFunction runs in rows")
    specs = []
    for system in ([] if args.no_ours else ["tailrace"]) + list(dict.fromkeys(args.peer)):
        form = args.form if system == "tailrace" else "rows"
        keyed_ours = args.workload == "keyed" and system == "tailrace"
        function = args.function if keyed_ours else None
        records = args.records or measure.default_records(args.workload, system, form, function)
        specs.append(Spec(args.workload, system, form, function, args.parallelism, records, options))
    lines = []
    for turn in range(args.repeat):
        for spec in specs if turn % 2 == 0 else reversed(specs):
            lines.append(measure.run(spec))
            print(json.dumps(lines[-1]), flush=True)
    if len(lines) > 1:
        print(json.dumps(measure.summary(lines)), flush=True)


def run_checkpoint(args: argparse.Namespace, options: dict[str, str]) -> None:
    """The keyed workload with a checkpoint each second against none, one run after the other."""
    records = args.records or measure.default_records("keyed", "tailrace", args.form, args.function) // 2
    spec = Spec("keyed", "tailrace", args.form, args.function, args.parallelism, records)
    rates: dict[str, list[float]] = {"none": [], "checkpoints": []}
    cpu: dict[str, list[float]] = {"none": [], "checkpoints": []}
    for turn in range(args.repeat):
        kinds = list(rates.items())
        for name, found in kinds if turn % 2 == 0 else reversed(kinds):
            every = {"checkpoint": options.get("interval", "1.0")} if name == "checkpoints" else {}
            line = show(measure.run(replace(spec, options=every)))
            found.append(line["records_per_second"])
            cpu[name].append(line["cpu_seconds"])
    medians = {name: round(statistics.median(found)) for name, found in rates.items()}
    ratio = round(medians["checkpoints"] / medians["none"], 3)
    used = round(statistics.median(cpu["none"]) / statistics.median(cpu["checkpoints"]), 3)
    same = {"workload": "checkpoint", "summary": True, "runs": args.repeat}
    show({**same, "rates": medians, "ratio": ratio, "cpu_ratio": used})


def run_state(args: argparse.Namespace, options: dict[str, str]) -> None:
    """Large keyed state with a checkpoint each second against none."""
    spec = StateSpec.of(options, parallelism=args.parallelism)
    rates: dict[str, list[float]] = {"none": [], "checkpoints": []}
    for turn in range(args.repeat):
        kinds = list(rates.items())
        for name, found in kinds if turn % 2 == 0 else reversed(kinds):
            interval = (spec.interval or 1.0) if name == "checkpoints" else 0.0
            one = replace(spec, interval=interval)
            figures, busy = measure.isolated("benchmarks.state", one)
            line = {"workload": "checkpoint", **asdict(one), **figures, "busy_elsewhere": busy}
            found.append(show(line)["records_per_second"])
    medians = {name: round(statistics.median(found)) for name, found in rates.items()}
    ratio = round(medians["checkpoints"] / medians["none"], 3)
    show({"workload": "checkpoint", "state": spec.state, "summary": True, "rates": medians, "ratio": ratio})


def run_recovery(spec: RecoverySpec) -> None:
    """Kills of workers, one after the other, in one job."""
    lines, busy = measure.isolated("benchmarks.recovery", spec)
    for line in lines:
        show({"workload": "recovery", **line})
    same = {"workload": "recovery", "summary": True, **asdict(spec)}
    show({**same, **recovery.summary(lines), "busy_elsewhere": busy})


def show(line: dict[str, Any]) -> dict[str, Any]:
    """Prints a line, with how many processes wanted a core in the last minute."""
    print(json.dumps({**line, "load": round(os.getloadavg()[0], 2)}), flush=True)
    return line


if __name__ == "__main__":
    main()
