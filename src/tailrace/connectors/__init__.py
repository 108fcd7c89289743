"""Sources and sinks that come with Tailrace."""

from tailrace.connectors.transactional import TransactionalSink

__all__ = ["TransactionalSink"]
