"""Sources and sinks that come with Tailrace."""

from tailrace.connectors.files.rolling import Roll
from tailrace.connectors.transactional import TransactionalSink

__all__ = ["Roll", "TransactionalSink"]
