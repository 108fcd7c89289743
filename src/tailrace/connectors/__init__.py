"""Sources and sinks that come with Tailrace."""

from tailrace.connectors.files.rolling import Roll
from tailrace.connectors.kafka.records import KafkaRecord
from tailrace.connectors.transactional import TransactionalSink

__all__ = ["KafkaRecord", "Roll", "TransactionalSink"]
