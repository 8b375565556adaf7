"""The files by which KubeShare's device manager shares a GPU, byte by byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import GIB
from vgpu.schemes.kubeshare.gemini_config import (
    MANAGER_PORTS,
    ClientPort,
    SharedPod,
    format_config,
    format_ports,
    parse_config,
    parse_ports,
)

CONFIG = b"2\nns/name 0.500000 1.000000 1073741824\nns/b 0.050000 0.050000 0\n"
PORTS = b"2\nns/name 50051\nns/b 50052\n"


def refused(parse, content):
    with pytest.raises(SourceError) as error:
        parse(content)
    assert error.value.reason is Reason.MALFORMED
    return error.value.detail


def test_both_files_have_the_number_of_their_lines_first():
    """K4: the config line after the number of pods."""
    pods = (SharedPod("ns", "name", 500, 1000, GIB), SharedPod("ns", "b", 50, 50, 0))
    ports = (ClientPort("ns", "name", 50051), ClientPort("ns", "b", 50052))
    assert format_config(pods) == CONFIG
    assert parse_config(CONFIG) == pods
    assert format_ports(ports) == PORTS
    assert parse_ports(PORTS) == ports
    assert format_ports(()) == b"0\n"
    assert parse_ports(b"0\n") == ()


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
        (b"1\nns/a 65536\n", "line 2"),
        (b"1\nns/a 1 \n", "line 2"),
        (b"1\nA/a 1\n", "line 2"),
        (b"1\nns/a \xd9\xa1\n", "line 2"),
        (b"1\n0\n", "line 2"),
    ],
)
def test_what_is_no_file_of_ports_is_malformed_and_refused_by_line(content, where):
    assert refused(parse_ports, content).startswith(where)


def test_pod_managers_have_511_ports():
    assert (MANAGER_PORTS[0], MANAGER_PORTS[-1], len(MANAGER_PORTS)) == (50051, 50561, 511)


names = st.text("abc09", min_size=1, max_size=10)
ports = st.builds(ClientPort, names, names, st.integers(0, 65535))


@given(st.lists(ports, max_size=3))
def test_every_file_of_ports_that_is_written_is_read_back(ports_of_gpu):
    assert parse_ports(format_ports(ports_of_gpu)) == tuple(ports_of_gpu)


@given(
    st.one_of(
        st.binary(max_size=60),
        st.builds(
            lambda start, size, new: PORTS[:start] + new + PORTS[start + size :],
            st.integers(0, len(PORTS)),
            st.integers(0, 5),
            st.binary(max_size=3),
        ),
    )
)
def test_any_file_of_ports_is_understood_or_malformed(content):
    try:
        parse_ports(content)
    except SourceError as error:
        assert error.reason is Reason.MALFORMED  # noqa: PT017
