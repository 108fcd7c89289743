"""The table of settings: keywords of an environment, variables of the process, and options of `tailrace run`.

The command line takes its options and their help from here, and the guide its table.
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from tailrace.api.config import MODES
from tailrace.errors import ConfigError


class Parameter(NamedTuple):
    """A setting. `variable` and `option` are empty where there is none; an option has a word for its value. `meaning` is a
    sentence of the guide, with its links."""

    name: str
    type: str
    default: Any
    unit: str
    variable: str
    option: str
    meaning: str
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """The option without its value."""
        return self.option.partition(" ")[0]

    @property
    def source(self) -> str:
        """The places where a user gives the setting, for errors."""
        return ", or ".join(one for one in (self.flag, self.variable) if one)

    @property
    def help(self) -> str:
        """The sentence without links, for a terminal."""
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", self.meaning).replace("`", "")
        return f"{plain[0].upper()}{plain[1:]}."

    def value(self, given: Any = None) -> Any:
        """What was given, else the value of the variable, else the default. Raises `ConfigError` as `read` does."""
        return next((one for one in (given, self.read()) if one is not None), self.default)

    def read(self) -> Any:
        """The value of the variable: an int, a bool, or a text; None where it is not set. Raises `ConfigError` for one that
        does not fit."""
        text = os.environ.get(self.variable)
        if not text:
            return None
        if self.type == "bool":
            if text not in ("0", "1"):
                raise ConfigError(f"{self.variable} must be 1 or 0, not {text!r}")
            return text == "1"
        if self.type == "int":
            if not text.isdecimal() or int(text) < 1:
                raise ConfigError(f"{self.variable} must be a whole number of at least 1, not {text!r}")
            return int(text)
        if self.choices and text not in self.choices:
            raise ConfigError(f"{self.source} must be {' or '.join(map(repr, self.choices))}, not {text!r}")
        return text


# fmt: off
_ENVIRONMENT = (
    Parameter("parallelism", "int or `tr.Elastic`", 2, "", "TAILRACE_PARALLELISM", "--parallelism TEXT",
        "the parallelism of operators that do not state theirs: a number, or `LEAST-MOST` for "
        "[an elastic job](changing-size.md#elastic-jobs)"),
    Parameter("autoscale", "`tr.Autoscale`", None, "", "", "--autoscale",
        "the [load decides](changing-size.md#by-the-load) how many workers an elastic job has"),
    Parameter("max_parallelism", "int", 128, "", "", "", "the number of key groups, and the largest parallelism"),
    Parameter("memory", "size", "1g", "bytes", "", "", "what each worker holds in its channels at most"),
    Parameter("copy_records", "bool", False, "", "", "", "each consumer of a record gets its own copy"),
    Parameter("checkpoint", "`tr.CheckpointConfig`", None, "", "", "",
        "when [checkpoints](checkpoints.md) are taken, and where; None: there are none"),
    Parameter("restart", "a strategy", None, "", "", "",
        "when a job that failed is started again ([the strategies](restarts.md#strategies))"),
    Parameter("standby", "`tr.StandbyConfig`", None, "", "", "--standby N",
        "a lost worker is [replaced](standbys.md) while the others go on; N is the number of `replicas`"),
    Parameter("on_error", "a policy", "fail", "", "", "",
        "what becomes of a [record for which user code raises](failing-records.md), unless its verb says otherwise"),
    Parameter("capsules", "bool or `tr.Capsules`", True, "", "", "",
        "whether a job with checkpoints keeps [failed calls](failed-calls.md) of user code, for `tailrace debug`"),
    Parameter("state_backend", "text", "memory", "", "", "", '`"disk"` for keyed state that is larger than memory'),
    Parameter("debug", "bool", False, "", "", "",
        "checks invariants, and that no operator changes what it received; slow"),
    Parameter("work_dir", "path or URL", None, "", "TAILRACE_WORK_DIR", "--work-dir DIR",
        "a folder that driver and executors reach, for DataFrames and results; "
        "[none is needed](on-a-cluster.md#how-dataframes-and-results-travel)"),
    Parameter("slot_timeout", "duration", 60.0, "seconds", "", "",
        "how long a job waits for task slots; at a restart on a cluster [longer](on-a-cluster.md#when-something-hangs)"),
    Parameter("publish_timeout", "duration", 600.0, "seconds", "", "",
        "how long a job goes on while output waits for a [server that is away](sources-and-sinks.md#a-server-that-is-away)"),
    Parameter("task_cpus", "float", None, "cores", "", "",
        "the share of a core that each [task slot](#task-slots) takes on a cluster; None: `spark.task.cpus`"),
    Parameter("progress", "bool", None, "", "TAILRACE_PROGRESS", "--no-progress",
        "a line with the progress of jobs on standard error; `tailrace run` has one, unless it is left out"),
    Parameter("ui", "bool or port", None, "", "TAILRACE_UI", "--ui",
        "[the page](page.md) of the program's jobs, for this machine: at a port, or the first free one from 4140"),
    Parameter("listeners", "a list", (), "", "", "",
        "[listeners of Spark](#listeners-of-spark) to which jobs report their start, progress and end"),
)
_PROCESS = (
    Parameter("master", "text", None, "", "TAILRACE_MASTER", "--master TEXT",
        "the Spark master of sessions that are started, such as `local[4]`, or `sc://host` for a server of "
        "[Spark Connect](on-a-cluster.md#spark-connect)"),
    Parameter("conf", "text", None, "", "", "--conf KEY=VALUE", "a setting of Spark; may be repeated"),
    Parameter("ship", "bool", False, "", "TAILRACE_SHIP", "--ship",
        "[brings](on-a-cluster.md#shipping) tailrace and your modules to executors, which may lack them"),
    Parameter("checkpoint_dir", "path or URL", None, "", "TAILRACE_CHECKPOINT_DIR", "--checkpoint-dir DIR",
        "the `dir` of checkpoints, for environments that are given no `checkpoint`"),
    Parameter("checkpoint_interval", "float", 1.0, "seconds", "", "--checkpoint-interval SECONDS",
        "the `interval` of these checkpoints; 0: only on request"),
    Parameter("mode", "text", "aligned", "", "", "--mode TEXT",
        "the `mode` of these checkpoints: `aligned`, `unaligned-max-inflight` or `unaligned`", MODES),
    Parameter("alignment_timeout", "duration", "auto", "seconds", "", "--alignment-timeout DURATION",
        "their `alignment_timeout`: seconds, a text such as `\"1 minute\"`, or `none`"),
    Parameter("max_inflight_bytes", "int", 64 << 20, "bytes", "", "--max-inflight-bytes BYTES",
        "their `max_inflight_bytes`, with `--mode unaligned-max-inflight`"),
    Parameter("from_checkpoint", "path or URL", None, "", "", "--from PATH",
        "a checkpoint to go on from, or `latest`, or `latest-or-new`, which begins anew where there is none yet"),
    Parameter("if_finished", "text", None, "", "", "--if-finished start-again",
        "with `--from latest`: a job that [has finished](stopping.md#a-job-that-has-finished) runs once more from the "
        "beginning; without it a sentence states that it has, and the exit code is 0", ("start-again",)),
    Parameter("allow_dropped_state", "bool", False, "", "", "--allow-dropped-state",
        "with `--from`: state that does not fit is left behind"),
    Parameter("dry_run", "bool", False, "", "", "--dry-run",
        "with `--from`: shows what of the checkpoint [fits the first job](changes.md#a-dry-run), and starts nothing"),
    Parameter("on_signal", "text", "cancel", "", "TAILRACE_ON_SIGNAL", "--on-signal TEXT",
        "what SIGINT and SIGTERM do to jobs: `cancel`, or [`stop`](#the-end-of-the-program) with a last checkpoint",
        ("stop", "cancel")),
    Parameter("supervised", "bool", False, "", "TAILRACE_SUPERVISED", "",
        "set for the programs of [`tailrace supervise`](in-production.md#tailrace-supervise): jobs start from "
        "`latest-or-new`, and one that could not go on from there is refused"),
    Parameter("driver_host", "text", None, "", "TAILRACE_DRIVER_HOST", "",
        "the address at which workers [reach the driver](on-a-cluster.md#addresses-and-ports)"),
    Parameter("ports", "text", None, "", "TAILRACE_PORTS", "",
        "the ports at which the driver and workers may listen: `40000-40100`, or one"),
    Parameter("tls", "text", None, "", "TAILRACE_TLS", "",
        "`1`, or a folder with certificates: connections are [encrypted](on-a-cluster.md#tls)"),
    Parameter("coordinator", "text", None, "", "TAILRACE_COORDINATOR", "",
        "`executor` or `driver`: where coordinators run for a "
        "[client of Spark Connect](on-a-cluster.md#a-client-that-executors-cannot-reach)", ("driver", "executor")),
    Parameter("driver_space", "size", "8g", "bytes", "TAILRACE_DRIVER_SPACE", "",
        "what DataFrames and results of a session take of the driver's disk at most, on a cluster"),
    Parameter("ui_hosts", "text", None, "", "TAILRACE_UI_HOSTS", "",
        "the names, with commas between them, under which a proxy shows [the page](page.md#behind-a-proxy)"),
    Parameter("ui_read_only", "bool", False, "", "TAILRACE_UI_READ_ONLY", "",
        "[the page](page.md) changes nothing"),
    Parameter("log_format", "text", "text", "", "TAILRACE_LOG_FORMAT", "",
        "`text` or `json`: [the log](#the-log) of a program that has no handlers of its own", ("text", "json")),
    Parameter("control_dir", "path", None, "", "TAILRACE_CONTROL_DIR", "",
        "the absolute path of the only folder in which sockets for "
        "[commands from another terminal](#from-another-terminal) are made and looked for"),
)
# fmt: on
SETTINGS = {one.name: one for one in (*_ENVIRONMENT, *_PROCESS)}
"""The settings by name, in the order of the guide."""
KEYWORDS = [one.name for one in _ENVIRONMENT]
"""The settings that are keywords of `tr.Environment`."""
