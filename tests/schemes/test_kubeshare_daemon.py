"""What KubeShare's device manager and the daemons on the nodes say to each other, byte by byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.allocation import Device
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import GIB, MIB
from vgpu.schemes.kubeshare.daemon import (
    MANAGER_PORTS,
    ClientPort,
    ErrorCode,
    GpuTenants,
    Hello,
    format_hello,
    format_ports,
    format_tenants,
    parse_hello,
    parse_ports,
    parse_tenants,
)
from vgpu.schemes.kubeshare.gemini_config import SharedPod, format_config, parse_config

GPU = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
TENANTS = GpuTenants(
    GPU,
    (SharedPod("ns", "name", 500, 1000, GIB), SharedPod("ns", "b", 50, 50, 0)),
    (ClientPort("ns", "name", 50051), ClientPort("ns", "b", 50052)),
)
LINE = (
    f"{GPU}:ns/name 0.500000 1.000000 1073741824,ns/b 0.050000 0.050000 0,"
    ":ns/name 50051,ns/b 50052,\n"
)


def refused(parse, content):
    with pytest.raises(SourceError) as error:
        parse(content)
    assert error.value.reason is Reason.MALFORMED
    return error.value.detail


def test_a_daemon_says_whose_it_is_and_which_gpus_it_has():
    hello = Hello("kubeshare-node-daemon-x", (Device(GPU, memory_bytes=16276 * MIB),))
    text = f"hostname:kubeshare-node-daemon-x\n{GPU}:16276,\n"
    assert format_hello(hello) == text
    assert parse_hello(text) == hello
    assert parse_hello("hostname:x\n\n") == Hello("x", ())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hostname:x\n",
        "hostname:x\n\n\n",
        "hostname:x\n\nheartbeat!\n",
        "hostname\n\n",
        "hostname:\n\n",
        "hostname:X y\n\n",
        "host:x\n\n",
        f"hostname:x\n{GPU}\n",
        "hostname:x\n0:1,\n",
        "hostname:x\r\n\n",
    ],
)
def test_what_is_no_greeting_is_malformed(text):
    refused(parse_hello, text)


def test_the_manager_says_all_tenants_of_a_gpu_in_one_line():
    assert format_tenants(TENANTS) == LINE
    assert parse_tenants(LINE) == TENANTS


def test_a_gpu_without_tenants_has_a_line_too():
    """The device manager sends it when a virtual GPU goes, and the daemon empties its files."""
    assert format_tenants(GpuTenants(GPU)) == f"{GPU}::\n"
    assert parse_tenants(f"{GPU}::\n") == GpuTenants(GPU)


def test_the_daemon_writes_the_line_as_two_files():
    """K4: the config line after the number of pods."""
    config = b"2\nns/name 0.500000 1.000000 1073741824\nns/b 0.050000 0.050000 0\n"
    ports = b"2\nns/name 50051\nns/b 50052\n"
    assert format_config(TENANTS.pods) == config
    assert parse_config(config) == TENANTS.pods
    assert format_ports(TENANTS.ports) == ports
    assert parse_ports(ports) == TENANTS.ports
    assert format_ports(()) == b"0\n"
    assert parse_ports(b"0\n") == ()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        LINE[:-1],
        LINE + "\n",
        f"{GPU}:\n",
        f"{GPU}:::\n",
        "0::\n",
        f"{GPU}:ns/a 0.1 0.1 1:\n",
        f"{GPU}:ns/a 0.1 0.1,:\n",
        f"{GPU}:,:\n",
        f"{GPU}::ns/a 1,ns/b\n",
        f"{GPU}::ns/a 65536,\n",
        f"{GPU}::ns/a 1 ,\n",
        f"{GPU}::A/a 1,\n",
        f"{GPU}::ns/a \u0661,\n",
        f"{GPU}::" + "ns/a 1," * 512 + "\n",
    ],
    ids=lambda line: line[-40:],
)
def test_what_is_no_line_of_the_manager_is_malformed(line):
    refused(parse_tenants, line)


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"", "line 1"),
        (b"\n", "line 1"),
        (b"x\n", "line 1"),
        (b"1\n", "line 1"),
        (b"01\nns/a 1\n", "line 1"),
        (b"2\nns/a 1\nns/b\n", "line 3"),
        (b"1\nns/a 1 2\n", "line 2"),
        (b"1\nns/\xff 1\n", "line 2"),
        (b"1\nns/a 99999\n", "line 2"),
    ],
)
def test_what_is_no_file_of_ports_is_malformed_and_told_by_line(content, where):
    assert refused(parse_ports, content).startswith(where)


def test_pod_managers_have_511_ports():
    assert (MANAGER_PORTS[0], MANAGER_PORTS[-1], len(MANAGER_PORTS)) == (50051, 50561, 511)


def test_the_device_managers_codes_have_its_words():
    assert [code.value for code in ErrorCode] == [0, 1, 2, 3, 255]
    assert ErrorCode(2).message == "Resource exceed!"
    assert all(code.message for code in ErrorCode if code)


names = st.text("abc09", min_size=1, max_size=10)
millis = st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(sorted)
shared = st.builds(
    lambda namespace, pod, cores, memory: SharedPod(namespace, pod, *cores, memory),
    names,
    names,
    millis,
    st.integers(0, 10**18 - 1),
)
ports = st.builds(ClientPort, names, names, st.integers(0, 65535))


@given(st.lists(shared, max_size=3), st.lists(ports, max_size=3))
def test_every_line_and_file_that_is_written_is_read_back(pods, managers):
    gpu = GpuTenants(GPU, tuple(pods), tuple(managers))
    assert parse_tenants(format_tenants(gpu)) == gpu
    assert parse_ports(format_ports(gpu.ports)) == gpu.ports


@given(
    st.one_of(
        st.text(max_size=60),
        st.builds(
            lambda start, size, new: LINE[:start] + new + LINE[start + size :],
            st.integers(0, len(LINE)),
            st.integers(0, 5),
            st.text(max_size=3),
        ),
    ),
    st.sampled_from([parse_tenants, parse_hello, lambda text: parse_ports(text.encode())]),
)
def test_any_text_is_understood_or_malformed(text, parse):
    try:
        parse(text)
    except SourceError as error:
        assert error.reason is Reason.MALFORMED  # noqa: PT017
