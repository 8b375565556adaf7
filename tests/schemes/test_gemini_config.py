"""KubeShare's config file of one GPU, in exact numbers."""

import hashlib
from decimal import Decimal
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import GIB, milli, percent
from vgpu.schemes.kubeshare.gemini_config import (
    SharedPod,
    client_name,
    format_config,
    parse_config,
    split_name,
)

EXAMPLE = b"1\nns/name 0.500000 1.000000 1073741824\n"


def test_the_worked_example_is_read_and_written():
    pods = (SharedPod("ns", "name", request_milli=500, limit_milli=1000, memory_bytes=GIB),)
    assert parse_config(EXAMPLE) == pods
    assert format_config(pods) == EXAMPLE


def test_a_name_that_is_too_long_for_geminis_messages_has_a_key():
    short, long = "n" * (47 - len("ns/")), "n" * (48 - len("ns/"))
    assert client_name("ns", short) == f"ns/{short}"
    key = client_name("ns", long)
    assert key == hashlib.sha256(f"ns/{long}".encode()).hexdigest()[:32]
    pods = (SharedPod(*split_name(key), 500, 1000, GIB),)
    assert pods[0].name == key
    assert format_config(pods) == f"1\n{key} 0.500000 1.000000 1073741824\n".encode()
    assert parse_config(format_config(pods)) == pods
    with pytest.raises(SourceError):
        parse_config(f"1\n{key[1:]} 0.500000 1.000000 1073741824\n".encode())


def test_a_gpu_that_nobody_uses_has_a_file_too():
    assert parse_config(b"0\n") == ()
    assert format_config(()) == b"0\n"


@pytest.mark.parametrize(
    "requests",
    [
        ["0.2", "0.4", "0.3", "0.1"],
        ["0.4", "0.2", "0.3", "0.1"],
        ["0.05"] * 20,
        ["0.04"] * 25,
        ["0.02"] * 50,
        ["0.01"] * 100,
    ],
    ids=lambda requests: "+".join(requests[:4]),
)
def test_requests_that_make_a_whole_gpu_add_up_to_one(requests):
    lines = [f"ns/pod-{n} {text}0000 1.000000 1\n" for n, text in enumerate(requests)]
    pods = parse_config("".join([f"{len(lines)}\n", *lines]).encode())
    assert sum(pod.request_milli for pod in pods) == 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("1", 1000), ("0.5", 500), ("0.05", 50), ("0.0001", 1), ("0.123000", 123)],
)
def test_a_decimal_is_read_in_thousandths_rounded_up(text, expected):
    assert milli(text) == expected


@given(st.decimals(0, 1, places=6))
def test_thousandths_are_exact(number):
    assert milli(f"{number:f}") == ceil(number * 1000)


def test_percents_are_rounded_up():
    assert [percent(n) for n in (0, 1, 10, 125, 1000)] == [0, 1, 1, 13, 100]
    assert percent(milli(str(Decimal("0.29")))) == 29


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"", "line 1"),
        (b"\n", "line 1"),
        (b"x\n", "line 1"),
        (b"-1\n", "line 1"),
        (b"\xb2\n", "line 1"),
        (b"99999\n", "line 1"),
        (b"2\nns/a 0.1 0.1 1\n", "line 1"),
        (b"0\nns/a 0.1 0.1 1\n", "line 1"),
        (b"1\nns/a 0.1 0.1\n", "line 2"),
        (b"1\nns/a 0.1 0.1 1 1\n", "line 2"),
        (b"1\nns/a  0.1 0.1 1\n", "line 2"),
        (b"1\nns/a 0.1 0.1 1\r\n", "line 2"),
        (b"1\na 0.1 0.1 1\n", "line 2"),
        (b'1\nns/a" 0.1 0.1 1\n', "line 2"),
        (b"1\nns/\xff 0.1 0.1 1\n", "line 2"),
        (b"1\nns/a -0.1 0.1 1\n", "line 2"),
        (b"1\nns/a 1e-3 0.1 1\n", "line 2"),
        (b"1\nns/a nan 0.1 1\n", "line 2"),
        (b"1\nns/a 0.1 1.001 1\n", "line 2"),
        (b"1\nns/a 0.1 0.1 1.5\n", "line 2"),
        (b"1\nns/a 0.1 0.1 -1\n", "line 2"),
        (b"2\nns/a 0.1 0.1 1\nns/a 0.1 0.1 1\n", "line 3"),
    ],
)
def test_hostile_text_is_malformed_and_the_error_names_the_line(content, where):
    with pytest.raises(SourceError) as refused:
        parse_config(content)
    assert refused.value.reason is Reason.MALFORMED
    assert refused.value.detail.startswith(f"{where}: ")


def test_the_column_order_of_kubeshare_2_is_refused_not_crossed():
    with pytest.raises(SourceError) as refused:
        parse_config(b"1\nns/name 1.000000 0.500000 1073741824\n")
    assert "KubeShare 2" in refused.value.detail


PODS = st.builds(
    lambda name, limit, part, memory: SharedPod("ns", name, min(part, limit), limit, memory),
    st.text("abc-.019", max_size=20).map("p".__add__),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.integers(0, 2**50),
)


@given(st.lists(PODS, unique_by=lambda pod: pod.pod, max_size=5))
def test_what_was_written_is_read(pods):
    assert parse_config(format_config(pods)) == tuple(pods)


@given(st.binary(max_size=80) | st.binary(max_size=8).map(lambda noise: EXAMPLE[:-3] + noise))
def test_any_bytes_give_pods_or_the_typed_error(content):
    try:
        parse_config(content)
    except SourceError as error:
        assert error.reason is Reason.MALFORMED  # noqa: PT017
