"""Messages for tests, made as `protoc` makes them:

syntax = "proto3";
package shop;
message Place { string city = 1; }
message Click { string user = 1; int64 at = 2; message Button { string name = 1; } Button button = 3; }
"""

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.internal import builder

_FIELD = descriptor_pb2.FieldDescriptorProto


def _field(name: str, number: int, kind: int, message: str = "") -> descriptor_pb2.FieldDescriptorProto:
    return _FIELD(name=name, number=number, label=_FIELD.LABEL_OPTIONAL, type=kind, type_name=message or None)


_TEXT, _LONG, _MESSAGE = _FIELD.TYPE_STRING, _FIELD.TYPE_INT64, _FIELD.TYPE_MESSAGE
_button = descriptor_pb2.DescriptorProto(name="Button", field=[_field("name", 1, _TEXT)])
_file = descriptor_pb2.FileDescriptorProto(
    name="tests/messages.proto",
    package="shop",
    syntax="proto3",
    message_type=[
        descriptor_pb2.DescriptorProto(name="Place", field=[_field("city", 1, _TEXT)]),
        descriptor_pb2.DescriptorProto(
            name="Click",
            field=[
                _field("user", 1, _TEXT),
                _field("at", 2, _LONG),
                _field("button", 3, _MESSAGE, ".shop.Click.Button"),
            ],
            nested_type=[_button],
        ),
    ],
)
DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(_file.SerializeToString())
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, __name__, globals())
