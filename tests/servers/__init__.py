"""The servers that tests start: Kafka (noida-db speaks its protocol), PostgreSQL, Valkey (Redis' protocol) and NATS.

Each is a context manager that gives a `Server`: at a free port of this machine, with its data in a temporary folder, so
that a test may kill it and start it anew with what it had kept. `tests/conftest.py` makes a fixture of each, one server for
all tests of a process. `TAILRACE_TEST_KAFKA=host:port`, `TAILRACE_TEST_POSTGRES=dsn`, `TAILRACE_TEST_REDIS=url` and
`TAILRACE_TEST_NATS=url` name servers that run already; the same tests run against them, without those that kill.
"""

from tests.servers.kafka import kafka_server
from tests.servers.nats import nats_server
from tests.servers.postgres import postgres_pair, postgres_server
from tests.servers.process import External, Server
from tests.servers.valkey import valkey_server

__all__ = ["External", "Server", "kafka_server", "nats_server", "postgres_pair", "postgres_server", "valkey_server"]
