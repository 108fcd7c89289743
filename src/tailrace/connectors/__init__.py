"""Sources and sinks that come with Tailrace."""

from tailrace.connectors.files.rolling import Roll
from tailrace.connectors.kafka.avro import KafkaAvro
from tailrace.connectors.kafka.protobuf import KafkaProtobuf
from tailrace.connectors.kafka.records import KafkaRecord
from tailrace.connectors.transactional import TransactionalSink

__all__ = ["KafkaAvro", "KafkaProtobuf", "KafkaRecord", "Roll", "TransactionalSink"]
