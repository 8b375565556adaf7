"""What a pod of KAI asks for, and the sizes that KAI's own parts compute of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kai_pods import kai_node, tenant
from vgpu.model.objects import Container
from vgpu.schemes.kai.keys import CONTAINER, DEVICES
from vgpu.schemes.kai.request import (
    asked,
    asked_devices,
    capacity_mib,
    fraction_container,
    label_mib,
    printed,
)

T4 = 15360


@pytest.mark.parametrize(
    ("annotations", "room", "portion", "limit"),
    [
        ({"memory": "4096"}, 4096, "0.27", 4147),
        ({"fraction": "0.5"}, 7650, "0.50", 7680),
        ({"fraction": "5e-1"}, 7650, "0.50", 7680),
        ({"fraction": "0.29"}, 4437, "0.29", 4454),
        ({"fraction": "0.004"}, 61, "0.00", 0),
    ],
)
def test_room_portion_and_limit_of_one_request_differ(annotations, room, portion, limit):
    request = asked(tenant(**annotations))
    assert request.room_mib(T4) == room
    assert printed(request.portion(T4)) == portion
    assert request.limit_mib(T4) == limit
    whole = request.memory_mib / T4 if request.memory_mib else request.part
    assert request.status_part(T4) == whole


@pytest.mark.parametrize(
    "text", ["", "0", "1", "1.5", "-0.5", "nan", "NaN", "inf", "0.5x", "500m", "0x1p-2", "½", "1_0"]
)
def test_a_fraction_that_kai_refuses_is_unknown(text):
    request = asked(tenant(fraction=text))
    assert not request.is_known
    sizes = request.room_mib, request.portion, request.limit_mib
    assert {size(T4) for size in sizes} == {None}


@pytest.mark.parametrize("text", ["0", "-1", "4Gi", "4096Mi", "1e3", "99999999999", " 1"])
def test_an_amount_of_memory_that_kai_refuses_is_unknown(text):
    assert not asked(tenant(memory=text)).is_known


def test_without_the_label_only_an_amount_of_memory_is_known():
    assert asked(tenant(memory="4096")).room_mib(None) == 4096
    assert asked(tenant(memory="4096")).portion(None) is None
    assert asked(tenant()).room_mib(None) is None
    assert asked(tenant()).portion(None) == 0.5
    assert label_mib(kai_node(None)) is label_mib(None) is None


@pytest.mark.parametrize(
    ("label", "mib"),
    [
        ("15360", 15360),
        (str(15360 << 20), 15360),
        ("0", None),
        ("x", None),
        ("-1", None),
        ("1048576", 1),
    ],
)
def test_a_label_of_a_tebibyte_or_more_is_in_bytes(label, mib):
    assert label_mib(kai_node(label)) == mib


@given(st.floats(1e-6, 0.999999), st.integers(100, 1 << 20))
def test_fractions_that_fill_a_gpu_have_room_on_it(part, label):
    """Σ room ≤ capacity ≤ label, for as many equal fractions as add up to a whole."""
    request = asked(tenant(fraction=f"{part:.6f}"))
    if request.part is None:
        return
    room = request.room_mib(label)
    assert room * int(1 / request.part) <= capacity_mib(label) <= label
    assert abs(request.limit_mib(label) - request.part * label) <= label / 200 + 1


def test_devices_and_container_are_read():
    plain = tenant()
    assert (asked_devices(plain), fraction_container(plain)) == (1, "main")
    pod = tenant(
        annotations={DEVICES: "2", CONTAINER: "gpu"},
        containers=(Container("main"), Container("gpu")),
    )
    assert (asked_devices(pod), fraction_container(pod)) == (2, "gpu")
    for text in ("0", "-1", "x", "1.5", "100000"):
        assert asked_devices(tenant(annotations={DEVICES: text})) is None
    assert fraction_container(tenant(annotations={CONTAINER: "away"})) == ""
