"""The wire decoder for AllocResp, against protobuf itself."""

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from hypothesis import example, given
from hypothesis import strategies as st

from vgpu.sources.kubelet_checkpoint import WireError, environment

FIELD = descriptor_pb2.FieldDescriptorProto

# ContainerAllocateResponse of the device-plugin API v1beta1, and the messages inside it.
ANSWER = {
    "EnvsEntry": [("key", 1, str), ("value", 2, str)],
    "Mount": [("container_path", 1, str), ("host_path", 2, str), ("read_only", 3, bool)],
    "ContainerAllocateResponse": [
        ("envs", 1, "EnvsEntry"),
        ("mounts", 2, "Mount"),
        ("annotations", 4, "EnvsEntry"),
    ],
}


def message_class(messages, *, maps):
    """The last of these messages, made at run time; ``maps`` makes its entries real maps.

    On the wire a map is a repeated message. protobuf's Python runtime differs from its Go one,
    which the kubelet uses, for a map entry with unknown fields: it drops the entry. A plain
    repeated message is read alike by both.
    """
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="v1beta1", syntax="proto3")
    for name, fields in messages.items():
        made = file.message_type.add(name=name)
        for field, number, kind in fields:
            if kind in (str, bool):
                scalar = FIELD.TYPE_STRING if kind is str else FIELD.TYPE_BOOL
                made.field.add(name=field, number=number, type=scalar, label=FIELD.LABEL_OPTIONAL)
                continue
            type_name = f".v1beta1.{kind}"
            if maps and kind == "EnvsEntry":
                entry = made.nested_type.add(name=f"{field.capitalize()}Entry")
                entry.options.map_entry = True
                for part, at in (("key", 1), ("value", 2)):
                    entry.field.add(
                        name=part, number=at, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL
                    )
                type_name = f".v1beta1.{name}.{entry.name}"
            made.field.add(
                name=field,
                number=number,
                type=FIELD.TYPE_MESSAGE,
                label=FIELD.LABEL_REPEATED,
                type_name=type_name,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName(f"v1beta1.{list(messages)[-1]}")
    return message_factory.GetMessageClass(found)


FULL = message_class(ANSWER, maps=True)
ENVS_ONLY = message_class(
    {"EnvsEntry": ANSWER["EnvsEntry"], "Answer": [("envs", 1, "EnvsEntry")]}, maps=False
)

TEXTS = st.dictionaries(st.text(max_size=20), st.text(max_size=200), max_size=5)


@given(TEXTS, TEXTS, st.lists(st.tuples(st.text(max_size=10), st.booleans()), max_size=3))
def test_the_environment_is_the_one_protobuf_wrote(envs, annotations, mounts):
    written = FULL(envs=envs, annotations=annotations)
    for path, read_only in mounts:
        written.mounts.add(container_path=path, read_only=read_only)
    assert environment(written.SerializeToString()) == envs


def varint(value):
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def delimited(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


FIELDS = st.deferred(
    lambda: st.one_of(
        st.binary(max_size=12),
        st.builds(delimited, st.integers(0, 5), FIELDS),
        st.builds(
            lambda n, w, c: varint(n << 3 | w) + c, st.integers(0, 5), st.integers(0, 7), FIELDS
        ),
        st.lists(FIELDS, min_size=2, max_size=3).map(b"".join),
    )
)


@given(FIELDS)
@example(b"\x0b\x0c")  # an empty group
@example(b"\x0b" * 99 + b"\x0c" * 99)
@example(b"\x0b\x14")  # a group that another one's end closes
@example(b"\x0c")
@example(b"\x0a\x05\x0a\x01\xff\x12\x00")  # a key that is not UTF-8
@example(b"\x0a\x06\x0a\x01\xff\x0a\x01K")  # one that a later key replaces
@example(b"\x0a\x06\x0a\x01K\x12\x01V\x0a\x06\x0a\x01K\x12\x01W")  # a key twice
@example(b"\x08" + b"\xff" * 9 + b"\x01")  # the longest integer
@example(b"\x08" + b"\xff" * 10 + b"\x01")
@example(b"\x8a\x80\x80\x80\x00\x00")  # a tag written longer than it need be
@example(b"\xff\xff\xff\xff\x7f\x00")
@example(b"\x0a\xff\xff\xff\xff\x0f")
@example(b"\x09" + b"\0" * 7)
@example(b"\x0d" + b"\0" * 4)
def test_any_bytes_are_read_as_protobuf_reads_them(content):
    try:
        expected = {entry.key: entry.value for entry in ENVS_ONLY.FromString(content).envs}
    except message.DecodeError:
        expected = None
    try:
        read = environment(content)
    except WireError as error:
        # Inside of unknown groups the Go runtime refuses field number 0, Python's does not.
        assert expected is None or str(error) == "field number 0"  # noqa: PT017
    else:
        assert read == expected


def test_groups_may_nest_but_not_without_end():
    assert environment(b"\x0b" * 100 + b"\x0c" * 100) == {}
    with pytest.raises(WireError):
        environment(b"\x0b" * 100_000)
