"""A standalone Spark cluster on this machine: a master and workers of the installed pyspark. For tests and `stress`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyspark

from tailrace.spark.cluster.java import ensure_java

ROOT = Path(__file__).parents[1]


class Standalone:
    """Started when it is made; nothing of it is left after `close`. Each of its processes has folders of its own below
    `root`, and so have the programs that use it, in `driver`. `environ` is what all of them start from, `java` is for the
    JVMs of master and workers, and `before` is put before the commands of workers."""

    def __init__(
        self,
        root: Path,
        *,
        cores: int,
        memory: str = "1g",
        environ: Mapping[str, str] | None = None,
        java: str = "",
        before: Sequence[str] = (),
    ) -> None:
        self.root = root
        self.driver = root / "driver"
        """Where driver programs run, and have everything of theirs."""
        self.started: list[subprocess.Popen[bytes]] = []
        self._server: subprocess.Popen[bytes] | None = None
        self._environ = dict(os.environ if environ is None else environ)
        self._java = java
        for name in ("tmp", "spark"):
            (self.driver / name).mkdir(parents=True)
        ensure_java()
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        try:
            self.start("master", [], ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"])
            self.wait_for(port, "master")
            for name in ("one", "two"):
                worker = ["worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", str(cores)]
                worker += ["--memory", memory, "--work-dir", str(root / name / "work"), self.master]
                self.start(name, before, worker)
        except BaseException:
            self.close()
            raise

    def start(self, name: str, before: Sequence[str], arguments: Sequence[str], memory: str = "256m") -> None:
        """Starts a class of Spark's, by its name below `org.apache.spark.deploy`, in a folder of its own."""
        folder = self.root / name
        for one in ("work", "tmp", "spark"):
            (folder / one).mkdir(parents=True, exist_ok=True)
        home = Path(pyspark.__file__).parent
        first, *rest = arguments
        command = [*before, str(home / "bin/spark-class"), f"org.apache.spark.deploy.{first}", *rest]
        environ = self.environ_of(folder) | {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": memory}
        environ["SPARK_DAEMON_JAVA_OPTS"] = self._java
        with open(folder / "log", "wb") as log:
            self.started.append(
                subprocess.Popen(
                    command, cwd=folder / "work", env=environ, stdout=log, stderr=log, start_new_session=True
                )
            )

    def environ_of(self, folder: Path) -> dict[str, str]:
        """Of a process whose temporary files go into a folder of its own."""
        return self._environ | {
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "PYSPARK_PYTHON": sys.executable,
            "TMPDIR": str(folder / "tmp"),
            "SPARK_LOCAL_DIRS": str(folder / "spark"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def wait_for(self, port: int, name: str) -> None:
        """Until what was started last, under this name, listens at the port."""
        process, deadline = self.started[-1], time.monotonic() + 180
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.1)
        log = self.root / name / "log"
        raise TimeoutError(f"nobody at port {port}:\n{log.read_text(errors='replace')}")

    def connect_server(self, **conf: str) -> str:
        """Starts a Spark Connect server as a driver of this cluster, beside the programs that use it, with nothing of theirs
        in its folders. Gives its address. It holds its cores until `stop_server`."""
        port, name = free_port(), "server"
        conf = {"spark.executor.memory": "512m", "spark.ui.enabled": "false", "spark.log.level": "ERROR"} | conf
        conf |= {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
        submit = [part for setting in conf.items() for part in ("--conf", "=".join(setting))]
        command = ["SparkSubmit", "--master", self.master, *submit]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        self.start(name, [], command, "512m")
        self._server = self.started[-1]
        self.wait_for(port, name)
        return f"sc://127.0.0.1:{port}"

    def stop_server(self) -> None:
        """Kills the Spark Connect server, as if its machine was lost."""
        if self._server is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait(20)
            self.started.remove(self._server)
            self._server = None

    def close(self) -> None:
        """Ends all that it has started."""
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):  # executors that were stopped
                os.killpg(process.pid, signal.SIGKILL)


def free_port() -> int:
    """A port of the loopback address that nobody has now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
