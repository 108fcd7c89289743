"""`python -m benchmarks chain|keyed|windows|checkpoint|backpressure|recovery|failover|rescale|standby|start|stop|stateread|
newkeys|latency|scale|join|calls|datasource|streaming|kafka|tables|batteries|components|graphs|termination|lap`: JSON
lines on standard output.

`python -m benchmarks stress` and `python -m benchmarks compare BASE` have arguments of their own."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
from dataclasses import asdict, replace
from typing import Any

from . import (
    algorithms,
    backpressure,
    calls,
    components,
    datasource,
    failover,
    join,
    latency,
    livegraphs,
    measure,
    recovery,
    rescale,
    scale,
    streaming,
)  # fmt: skip
from .algorithms import AlgorithmSpec
from .components import ComponentsSpec
from .failover import FailoverSpec
from .latency import LatencySpec
from .livegraphs import LiveSpec
from .loops import LapSpec, TerminationSpec, with_options
from .measure import Spec
from .newkeys import KEYS, NewKeysSpec
from .recovery import RecoverySpec
from .rescale import RescaleSpec
from .start import StartSpec
from .state import StateSpec
from .stateread import KINDS, StateReadSpec
from .stop import StopSpec

WORKLOADS = (
    "chain", "keyed", "windows", "checkpoint", "backpressure", "recovery", "failover", "rescale", "standby", "start",
    "stop", "stateread", "newkeys", "latency", "scale", "join", "calls", "datasource", "streaming", "kafka", "tables",
    "batteries",
)  # fmt: skip
LOOPS = ("components", "graphs", "termination", "lap")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    p.add_argument("workload", choices=[*WORKLOADS, *LOOPS])
    p.add_argument(
        "--form",
        choices=["rows", "columns"],
        help="form of our streams (default: rows; in loops both); peers run in rows",
    )
    p.add_argument("--parallelism", type=int, default=2)
    p.add_argument("--records", type=int, help="how many (default: by workload and system, for 10 s or more)")
    p.add_argument(
        "--function",
        choices=["aggregate", "process"],
        default="aggregate",
        help="keyed, ours: the built-in aggregate (default) or a KeyedProcessFunction",
    )
    p.add_argument(
        "--peer",
        action="append",
        choices=["bytewax", "handwritten", "graphx", "dataframe", "igraph", "structured", "none"],
        default=[],
        help="a system to run as well; may be given several times",
    )
    p.add_argument("--no-ours", action="store_true", help="run the peers only")
    p.add_argument("--repeat", type=int, default=1, metavar="K", help="measure K times (default: 1)")
    p.add_argument(
        "--trace",
        action="store_true",
        help="latency, ours: what each thread did while the slowest records were under way",
    )
    p.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of a system or workload, see README.md",
    )
    return p


def main() -> None:
    if sys.argv[1:2] == ["stress"]:
        from .stress.command import main as stress

        raise SystemExit(stress(sys.argv[2:]))
    if sys.argv[1:2] == ["compare"]:
        from .regression import main as regression

        raise SystemExit(regression(sys.argv[2:]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what measures ends with it
    cli = parser()
    args = cli.parse_args()
    options = dict(s.split("=", 1) for s in args.set)
    if args.workload in LOOPS:
        return run_loops(args, options)
    args.form = args.form or "rows"
    if args.workload == "recovery":
        return run_recovery(RecoverySpec.of(options, parallelism=args.parallelism))
    if args.workload == "backpressure":
        return run_backpressure(options)
    if args.workload == "failover":
        return run_failover(options, args.parallelism)
    if args.workload == "rescale":
        return run_rescale(options, args.parallelism)
    if args.workload == "standby":
        return run_standby(args, options)
    if args.workload == "start":
        return run_start(StartSpec.of(options, parallelism=args.parallelism), args.repeat)
    if args.workload == "stop":
        return run_stop(StopSpec.of(options, parallelism=args.parallelism), args.repeat)
    if args.workload == "stateread":
        return run_stateread(args, options)
    if args.workload == "newkeys":
        return run_newkeys(args, options)
    if args.workload == "join":
        return run_join(args, options)
    if args.workload == "calls":
        return run_calls(options, args.repeat)
    if args.workload == "datasource":
        return run_datasource(args, options)
    if args.workload == "streaming":
        return run_streaming(args, options)
    if args.workload == "kafka":
        return run_kafka(options, args.repeat)
    if args.workload == "tables":
        return run_tables(options, args.repeat)
    if args.workload == "batteries":
        return run_batteries(options)
    if args.workload == "scale":
        return run_scale(options, args.repeat)
    if args.workload == "latency":
        return run_latency(args, options)
    if args.workload == "checkpoint":
        return run_state(args, options) if "state" in options else run_checkpoint(args, options)
    if "graphx" in args.peer or "dataframe" in args.peer:
        cli.error("graphx and dataframe are peers of components")
    if args.no_ours and not args.peer:
        cli.error("--no-ours needs a --peer")
    if args.workload == "windows" and "bytewax" in args.peer and options.get("window") != "session":
        cli.error("of bytewax sessions (--set window=session) are measured, no windows")
    if args.workload == "windows" and "handwritten" in args.peer:
        cli.error("handwritten is a peer of chain and keyed")
    if args.workload != "windows" and "structured" in args.peer:
        cli.error("structured is a peer of windows and join")
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
    every = {"checkpoint": options.get("interval", "1.0")}
    compare(args, spec, {"none": {}, "checkpoints": every}, "checkpoint")


def run_standby(args: argparse.Namespace, options: dict[str, str]) -> None:
    """The keyed workload with a checkpoint each second and with standbys, against the same without standbys. With
    `replicas=0` nobody stands by, and what workers do is kept all the same; with `compare=shape` values are not compared."""
    records = args.records or measure.default_records("keyed", "tailrace", args.form, args.function) // 2
    spec = Spec("keyed", "tailrace", args.form, args.function, args.parallelism, records)
    every = {"checkpoint": options.get("interval", "1.0")}
    standbys = {"standby": options.get("replicas", "1"), "compare": options.get("compare", "values")}
    compare(args, spec, {"alone": every, "standbys": {**every, **standbys}}, "standby")


def compare(args: argparse.Namespace, spec: Spec, kinds: dict[str, dict[str, str]], workload: str) -> None:
    """Two kinds of a run, one after the other and in turns; the ratio of the second to the first."""
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    cpu: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(args.repeat):
        for name in kinds if turn % 2 == 0 else reversed(kinds):
            line = show(measure.run(replace(spec, options=kinds[name])))
            rates[name].append(line["records_per_second"])
            cpu[name].append(line["cpu_seconds"])
    medians = {name: round(statistics.median(found)) for name, found in rates.items()}
    first, second = kinds
    ratio = round(medians[second] / medians[first], 3)
    used = round(statistics.median(cpu[first]) / statistics.median(cpu[second]), 3)
    same = {"workload": workload, "summary": True, "runs": args.repeat}
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
            figures, busy = measure.isolate("benchmarks.state", one)
            line = {"workload": "checkpoint", **asdict(one), **figures, "busy_elsewhere": busy}
            found.append(show(line)["records_per_second"])
    medians = {name: round(statistics.median(found)) for name, found in rates.items()}
    ratio = round(medians["checkpoints"] / medians["none"], 3)
    show({"workload": "checkpoint", "state": spec.state, "summary": True, "rates": medians, "ratio": ratio})


def run_backpressure(options: dict[str, str]) -> None:
    """Every policy and none, with each sleep, each run in processes of its own; or those that were named."""
    policies = [options["policy"]] if "policy" in options else list(backpressure.POLICIES)
    sleeps = [float(options["sleep"])] if "sleep" in options else list(backpressure.SLEEPS)
    for sleep in sleeps:
        lines = []
        for policy in policies:
            spec = backpressure.BackpressureSpec.of({**options, "policy": policy, "sleep": str(sleep)})
            figures, busy = measure.isolate("benchmarks.backpressure", spec)
            lines.append(show({**figures, "busy_elsewhere": busy}))
        for line in backpressure.ratios(lines):
            show(line)


def run_recovery(spec: RecoverySpec) -> None:
    """Kills of workers, one after the other, in one job."""
    lines, busy = measure.isolate("benchmarks.recovery", spec)
    for line in lines:
        show({"workload": "recovery", **line})
    same = {"workload": "recovery", "summary": True, **asdict(spec)}
    show({**same, **recovery.summary(lines), "busy_elsewhere": busy})


def run_failover(options: dict[str, str], parallelism: int) -> None:
    """Kills of workers in each mode, or in the one that was named, each in processes of its own."""
    lines: list[dict[str, Any]] = []
    for mode in [options["mode"]] if "mode" in options else failover.MODES:
        spec = FailoverSpec.of(options, parallelism=parallelism, mode=mode)
        found, busy = measure.isolate("benchmarks.failover", spec)
        lines += [show({**line, "busy_elsewhere": busy}) for line in found]
    show(failover.summary(lines))


def run_rescale(options: dict[str, str], parallelism: int) -> None:
    """Changes of size, with state in memory and on disk, or in the one that was named."""
    for state in [options["state"]] if "state" in options else ["memory", "disk"]:
        found, busy = measure.isolate(
            "benchmarks.rescale", RescaleSpec.of(options, parallelism=parallelism, state=state)
        )
        for line in found:
            show({**line, "busy_elsewhere": busy})
        show({**rescale.summary(found), "state": state})


def run_start(spec: StartSpec, repeat: int) -> None:
    """Each time in a session of its own."""
    for _ in range(repeat):
        figures, busy = measure.isolate("benchmarks.start", spec)
        show({"workload": "start", **asdict(spec), **figures, "busy_elsewhere": busy})


def run_stop(spec: StopSpec, repeat: int) -> None:
    """Each time in a session of its own."""
    for _ in range(repeat):
        figures, busy = measure.isolate("benchmarks.stop", spec)
        show({"workload": "stop", **asdict(spec), **figures, "busy_elsewhere": busy})


def run_stateread(args: argparse.Namespace, options: dict[str, str]) -> None:
    """State as columns, kind by kind, or of one kind."""
    for kind in [options["kind"]] if "kind" in options else KINDS:
        spec = StateReadSpec.of({**options, "kind": kind}, parallelism=args.parallelism)
        for _ in range(args.repeat):
            figures, busy = measure.isolate("benchmarks.stateread", spec)
            show({"workload": "stateread", **asdict(spec), **figures, "busy_elsewhere": busy})


def run_newkeys(args: argparse.Namespace, options: dict[str, str]) -> None:
    """Checkpoints of new keys, by their kind, or of one kind."""
    for key in [options["key"]] if "key" in options else KEYS:
        spec = NewKeysSpec.of({**options, "key": key})
        for _ in range(args.repeat):
            figures, busy = measure.isolate("benchmarks.newkeys", spec)
            show({"workload": "newkeys", **asdict(spec), **figures, "busy_elsewhere": busy})


def run_join(args: argparse.Namespace, options: dict[str, str]) -> None:
    """A join, ours and Bytewax's if that is a peer: without time, and by windows of event time."""
    ours = [] if args.no_ours else ["tailrace-columns"] if args.form == "columns" else ["tailrace"]
    peers = {"bytewax": join.SYSTEMS[2:], "structured": ("structured",)}
    systems = [*ours, *(system for peer in args.peer for system in peers.get(peer, ()))]
    for system in systems * args.repeat:
        spec = join.JoinSpec.of({**options, "system": system})
        figures, busy = measure.isolate(
            "benchmarks.peers.structured" if system == "structured" else "benchmarks.join", spec
        )
        show({"workload": "join", **asdict(spec), **figures, "busy_elsewhere": busy})


def run_calls(options: dict[str, str], repeat: int) -> None:
    """Calls over HTTP, ours and those of plain asyncio, or of one system."""
    for system in ([options["system"]] if "system" in options else calls.SYSTEMS) * repeat:
        spec = calls.CallsSpec.of({**options, "system": system})
        figures, busy = measure.isolate("benchmarks.calls", spec)
        show({"workload": "calls", **asdict(spec), **figures, "busy_elsewhere": busy})


def run_datasource(args: argparse.Namespace, options: dict[str, str]) -> None:
    """A Python Data Source in our workers and in Spark's micro-batches: throughput of rows and of batches, latency."""
    runs = [("throughput", "tuples"), ("throughput", "batches"), ("latency", "tuples")]
    chosen = [run for run in runs if options.get("measure", run[0]) == run[0]]
    for measured, kind in chosen:
        for system in [*(["tailrace"] * (not args.no_ours)), "spark"] * args.repeat:
            more = {"measure": measured, "kind": kind, "form": args.form, "parallelism": args.parallelism}
            spec = datasource.DataSourceSpec.of(options, system=system, **more)
            figures, busy = measure.isolate("benchmarks.datasource", spec)
            show({"workload": "datasource", **asdict(spec), **figures, "busy_elsewhere": busy})


def run_streaming(args: argparse.Namespace, options: dict[str, str]) -> None:
    """A streaming DataFrame into Parquet files by Spark, and into a job; the ratio is to the CPU of the former."""
    for _ in range(args.repeat):
        base = 0.0
        for system in [options["system"]] if "system" in options else streaming.SYSTEMS:
            more = {"system": system, "form": args.form, "parallelism": args.parallelism}
            spec = streaming.StreamingSpec.of(options, **more)
            figures, busy = measure.isolate("benchmarks.streaming", spec)
            base = figures["cpu_us_per_record"] if system == "parquet" else base
            ratio = {"cpu_to_parquet": round(figures["cpu_us_per_record"] / base, 2)} if base else {}
            show({"workload": "streaming", **asdict(spec), **figures, **ratio, "busy_elsewhere": busy})


def run_kafka(options: dict[str, str], repeat: int) -> None:
    """Each part of Kafka's, or the one that was named, by all systems; the ratio is to the client's CPU in the same run."""
    from . import kafka  # its client is an extra

    for work in [options.pop("work")] if "work" in options else kafka.SYSTEMS:
        for _ in range(repeat):
            base = 0.0
            for system in [options["system"]] if "system" in options else kafka.SYSTEMS[work]:
                spec = kafka.KafkaSpec.of(options, work=work, system=system)
                figures, busy = measure.isolate("benchmarks.kafka", spec)
                used = figures.get("cpu_us_per_record", 0.0)
                base = used if system == "client" else base
                ratio = {"cpu_to_client": round(used / base, 2)} if base and used else {}
                show({"workload": "kafka", **asdict(spec), **figures, **ratio, "busy_elsewhere": busy})


def run_batteries(options: dict[str, str]) -> None:
    """The battery of each sink against its server, or of the one that was named."""
    from . import batteries  # its clients are extras

    for sink in [options["sink"]] if "sink" in options else batteries.SINKS:
        spec = batteries.BatterySpec.of(options, sink)
        figures, _ = measure.isolate("benchmarks.batteries", spec, timeout=3600.0)
        show({"workload": "batteries", **asdict(spec), **figures})


def run_tables(options: dict[str, str], repeat: int) -> None:
    """Each part of lake tables, or the one that was named, by all systems; the ratio is to the Parquet sink's CPU in the
    same run."""
    from . import tables  # its library is an extra

    for work in [options.pop("work")] if "work" in options else tables.SYSTEMS:
        for _ in range(repeat):
            base = 0.0
            for system in [options["system"]] if "system" in options else tables.SYSTEMS[work]:
                spec = tables.TablesSpec.of(options, work=work, system=system)
                figures, busy = measure.isolate("benchmarks.tables", spec)
                used = figures.get("cpu_ms_per_mb", 0.0)
                base = used if system == "parquet" else base
                ratio = {"cpu_to_parquet": round(used / base, 2)} if base and used else {}
                show({"workload": "tables", **asdict(spec), **figures, **ratio, "busy_elsewhere": busy})


def run_scale(options: dict[str, str], repeat: int) -> None:
    """Every kind of job with each number of workers, each in a process of its own; or those that were named."""
    jobs = [options["job"]] if "job" in options else scale.JOBS
    counts = [int(options["workers"])] if "workers" in options else scale.WORKERS
    for spec in [scale.ScaleSpec(job, workers) for job in jobs for workers in counts for _ in range(repeat)]:
        figures, busy = measure.isolate("benchmarks.scale", spec)
        show({"workload": "scale", **asdict(spec), **figures, "busy_elsewhere": busy})


def run_latency(args: argparse.Namespace, options: dict[str, str]) -> None:
    """Every rate, or the one that was named; all systems at one rate before the next one."""
    rates = [int(options.pop("rate"))] if "rate" in options else latency.RATES
    systems = [*([] if args.no_ours else ["tailrace"]), *(["bytewax"] if "bytewax" in args.peer else [])]
    for rate in rates:
        for _ in range(args.repeat):
            for system in systems:
                traced = args.trace and system == "tailrace"
                spec = LatencySpec.of(options, system=system, rate=rate, parallelism=args.parallelism, trace=traced)
                figures, busy = measure.isolate("benchmarks.latency", spec)
                for line in figures.pop("trace", []):
                    show({"workload": "latency", "rate": rate, **line})
                show({"workload": "latency", **asdict(spec), **figures, "busy_elsewhere": busy})


def run_loops(args: argparse.Namespace, options: dict[str, str]) -> None:
    """What is measured of loops, each in processes of its own."""
    forms = [args.form] if args.form else ["columns", "rows"]
    if args.workload == "components":
        return run_components(args, forms, options)
    if args.workload == "graphs":
        return run_graphs(args, options)
    specs: list[Any]
    if args.workload == "termination":
        specs = [TerminationSpec(laps, parallelism=args.parallelism) for laps in (1, 100, 10_000)]
    else:
        specs = [LapSpec(parallelism=args.parallelism)] if not options else []
        specs += [LapSpec(form, *MANY[form], args.parallelism) for form in forms]
    specs = list(dict.fromkeys(with_options(spec, options) for spec in specs))
    for _ in range(args.repeat):
        for spec in specs:
            figures, busy = measure.isolate("benchmarks.loops", spec)
            show({"workload": args.workload, **asdict(spec), **figures, "busy_elsewhere": busy})


MANY = {"rows": (200_000, 50), "columns": (1_000_000, 100)}
"""Records and laps for some seconds."""


def run_components(args: argparse.Namespace, forms: list[str], options: dict[str, str]) -> None:
    """Both graphs, by everybody or by those that were named."""
    systems = args.peer or ["graphx", "dataframe"]
    paths = [int(options.pop("path"))] if "path" in options else [0, 2000]
    runs = {"graphx": {"runs": 1}, "dataframe": {"runs": 1, "warm": 1}}  # of those that take minutes
    lines = []
    for path in paths:
        ours = [] if args.no_ours else [("tailrace", form) for form in forms]
        for system, form in [*ours, *((system, "rows") for system in systems if system != "none")]:
            few = runs.get(system, {}) if path or system == "dataframe" else {}
            more = {**few, "system": system, "form": form, "path": path, "parallelism": args.parallelism}
            spec = ComponentsSpec.of(options, **more)
            figures, busy = measure.isolate("benchmarks.components", spec)
            found = {"workload": "components", **asdict(spec), **figures, "busy_elsewhere": busy}
            lines.append(show(found))
    for line in components.summary(lines):
        show(line)


def run_graphs(args: argparse.Namespace, options: dict[str, str]) -> None:
    """Graph algorithms, by everybody or by those that were named, one process for each."""
    if options.get("algorithm") == "live":
        for verb in [options["verb"]] if "verb" in options else livegraphs.VERBS:
            live = LiveSpec.of(options, verb=verb)
            figures, busy = measure.isolate("benchmarks.livegraphs", live, timeout=900.0 + live.edges / 2_000)
            show({"workload": "graphs", "algorithm": "live", **asdict(live), **figures, "busy_elsewhere": busy})
        return
    chosen = [options["algorithm"]] if "algorithm" in options else algorithms.ALGORITHMS
    kinds = [options["kind"]] if "kind" in options else ["random"]
    systems = [*([] if args.no_ours else ["tailrace"]), *(args.peer or ["graphx", "igraph"])]
    lines = []
    for kind in kinds:
        for algorithm in chosen:
            for system in systems:
                if system == "none" or (system, algorithm) == ("graphx", "paths"):
                    continue
                more = {"system": system, "algorithm": algorithm, "kind": kind, "parallelism": args.parallelism}
                spec = AlgorithmSpec.of(options, **more)
                figures, busy = measure.isolate("benchmarks.algorithms", spec)
                lines.append(show({"workload": "graphs", **asdict(spec), **figures, "busy_elsewhere": busy}))
    for line in algorithms.summary(lines):
        show({"workload": "graphs", "summary": True, **line})


def show(line: dict[str, Any]) -> dict[str, Any]:
    """Prints a line, with how many processes wanted a core in the last minute."""
    print(json.dumps({**line, "load": round(os.getloadavg()[0], 2)}), flush=True)
    return line


if __name__ == "__main__":
    main()
