"""gpu-manager's vcuda.config, byte for byte."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import GAIA_MEMORY_BLOCK
from vgpu.schemes.gaia.vcuda_config import CONFIG_SIZE, VcudaConfig, decode, encode

UID = "9a422c32-4fc2-11e9-bb64-505dac4c3a38"

EXAMPLE = VcudaConfig(
    pod_uid=UID,
    limit_percent=50,
    container="main",
    bus_id="0000:3b:00.0",
    memory_bytes=30 * GAIA_MEMORY_BLOCK,
    utilization_percent=50,
    hard_limit=True,
    driver=(470, 57),
    enable=True,
)


def changed(config=EXAMPLE, **fields):
    return VcudaConfig(
        **{name: getattr(config, name) for name in config.__struct_fields__} | fields
    )


def patched(offset, content):
    data = bytearray(encode(EXAMPLE))
    data[offset : offset + len(content)] = content
    return bytes(data)


def refused(content):
    with pytest.raises(SourceError) as error:
        decode(content, "file")
    return error.value.reason


def test_gpu_managers_worked_example_has_7680_mib():
    # core 50, memory 30 blocks
    config = decode(encode(EXAMPLE))
    assert config.memory_bytes == 8053063680 == 7680 * 1024 * 1024
    assert (config.cores_limit_percent, config.utilization_percent) == (50, 50)


def test_every_field_is_where_the_c_struct_has_it():
    data = encode(EXAMPLE)
    assert len(data) == CONFIG_SIZE == 8240
    assert data[0:48] == UID.encode().ljust(48, b"\0")
    assert data[48:52] == struct.pack("<i", 50)
    assert data[52:4096] == bytes(4044)
    assert data[4096:8192] == b"main".ljust(4096, b"\0")
    assert data[8192:8208] == b"0000:3b:00.0\0\0\0\0"
    assert data[8208:8216] == struct.pack("<Q", 8053063680)
    assert data[8216:8220] == struct.pack("<i", 50)
    assert data[8220:8224] == struct.pack("<i", 1)
    assert data[8224:8232] == struct.pack("<ii", 470, 57)
    assert data[8232:8240] == struct.pack("<i4x", 1)


def test_the_core_limit_is_the_request_unless_an_annotation_made_it_soft():
    assert changed(utilization_percent=20, limit_percent=80).cores_limit_percent == 20
    soft = changed(utilization_percent=20, limit_percent=80, hard_limit=False)
    assert soft.cores_limit_percent == 80


def test_a_string_may_fill_its_field():
    config = changed(bus_id="00000000:3B:00.0", container="c" * 63, pod_uid="p" * 48)
    assert decode(encode(config)) == config


def test_what_lies_behind_a_strings_end_is_not_looked_at():
    assert decode(patched(40, b"\xff" * 8)) == EXAMPLE


@pytest.mark.parametrize("size", [0, 12, CONFIG_SIZE - 1, CONFIG_SIZE + 1])
def test_another_size_is_malformed(size):
    assert refused(bytes(size)) is Reason.MALFORMED


@pytest.mark.parametrize(
    ("offset", "content"),
    [
        (0, b"\xff"),
        (0, b"a\nb"),
        (4096, b"\x1b["),
        (4096, b"evil name\0"),
        (4096, b"c" * 64 + b"\0"),
        (8208, struct.pack("<Q", 2**64 - 1)),
        (8216, struct.pack("<i", 6401)),
        (8192, b"not a bus id\0"),
        (48, struct.pack("<i", -1)),
        (8216, struct.pack("<i", -50)),
    ],
)
def test_a_hostile_field_is_malformed(offset, content):
    assert refused(patched(offset, content)) is Reason.MALFORMED


@pytest.mark.parametrize(
    "fields",
    [
        {"pod_uid": "p" * 49},
        {"container": "é"},
        {"bus_id": "x" * 17},
        {"memory_bytes": -1},
        {"memory_bytes": 2**64},
        {"limit_percent": 2**31},
    ],
)
def test_what_does_not_fit_its_field_is_not_written(fields):
    with pytest.raises(SourceError) as error:
        encode(changed(**fields))
    assert error.value.reason is Reason.MALFORMED


NAMES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=48)
CORES = st.integers(0, 6400)
INTS = st.integers(0, 2**31 - 1)


@given(
    st.builds(
        VcudaConfig,
        pod_uid=NAMES,
        limit_percent=CORES,
        container=st.from_regex(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?", fullmatch=True),
        bus_id=st.sampled_from(["", "0000:3b:00.0", "00000000:AF:1f.7"]),
        memory_bytes=st.integers(0, 2**53),
        utilization_percent=CORES,
        hard_limit=st.booleans(),
        driver=st.tuples(INTS, INTS),
        enable=st.booleans(),
    )
)
def test_what_was_encoded_is_decoded(config):
    assert decode(encode(config)) == config


@given(
    st.binary(max_size=64)
    | st.tuples(st.sampled_from([0, 48, 4096, 8192, 8208, 8224]), st.binary(max_size=16)).map(
        lambda change: patched(*change)
    )
)
def test_any_bytes_give_a_config_or_the_typed_error(content):
    try:
        encode(decode(content))
    except SourceError as error:
        assert error.reason is Reason.MALFORMED  # noqa: PT017
