"""`python -m benchmarks chain|keyed ...`: one JSON line per run on standard output."""

from __future__ import annotations

import argparse
import json

from . import measure
from .measure import Spec


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    p.add_argument("workload", choices=["chain", "keyed"])
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
        options = dict(s.split("=", 1) for s in args.set)
        specs.append(Spec(args.workload, system, form, function, args.parallelism, records, options))
    lines = []
    for turn in range(args.repeat):
        for spec in specs if turn % 2 == 0 else reversed(specs):
            lines.append(measure.run(spec))
            print(json.dumps(lines[-1]), flush=True)
    if len(lines) > 1:
        print(json.dumps(measure.summary(lines)), flush=True)


if __name__ == "__main__":
    main()
