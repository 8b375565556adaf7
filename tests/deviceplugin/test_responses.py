"""Answers to Allocate: name and edits come back from their bytes; foreign bytes name nobody."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.kubelet.responses import answer, read
from tests.support.environment import ROOT
from vgpu.rpc import deviceplugin_pb2 as pb
from vgpu.schemes.codec import ContainerEdits, Mount

NAME = "0123456789abcdef01234567"

TEXTS = st.text(max_size=20)
PAIRS = st.dictionaries(TEXTS, TEXTS, max_size=4)
EDITS = st.builds(
    ContainerEdits,
    env=PAIRS,
    mounts=st.lists(st.builds(Mount, TEXTS, TEXTS, st.booleans()), max_size=3).map(tuple),
    devices=st.lists(TEXTS, max_size=3).map(tuple),
    annotations=PAIRS,
)
NAMES = st.text("0123456789abcdef", min_size=24, max_size=24)


@pytest.mark.parametrize("suffix", [".py", ".pyi"])
def test_the_committed_code_is_what_the_proto_gives(tmp_path, suffix):
    from grpc_tools import protoc

    written = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    assert protoc.main(["protoc", f"-I{ROOT}", *written, "vgpu/rpc/deviceplugin.proto"]) == 0
    name = f"vgpu/rpc/deviceplugin_pb2{suffix}"
    assert (tmp_path / name).read_text() == (ROOT / name).read_text()


@given(NAMES, EDITS, st.booleans())
def test_name_and_edits_come_back(name, edits, cdi):
    assert read(answer(name, edits, cdi=cdi).SerializeToString()) == (name, edits)


@given(EDITS, st.booleans())
def test_an_answer_without_a_name_has_the_edits_alone(edits, cdi):
    message = answer("", edits, cdi=cdi)
    assert not message.cdi_devices
    assert read(message.SerializeToString()) == ("", edits)


def test_the_name_is_a_cdi_device_or_an_annotation():
    edits = ContainerEdits({"A": "b"}, devices=("/dev/nvidia0",), annotations={"c": "d"})
    with_cdi = answer(NAME, edits, cdi=True)
    assert [device.name for device in with_cdi.cdi_devices] == [f"vgpu.dev/share={NAME}"]
    assert dict(with_cdi.annotations) == {"c": "d"}
    without = answer(NAME, edits, cdi=False)
    assert not without.cdi_devices
    assert dict(without.annotations) == {"c": "d", "vgpu.dev/share": NAME}
    node = pb.DeviceSpec(container_path="/dev/nvidia0", host_path="/dev/nvidia0", permissions="rwm")
    assert list(without.devices) == [node]


@given(st.binary(max_size=60))
def test_any_bytes_are_read(content):
    name, edits = read(content)
    assert isinstance(name, str)
    assert isinstance(edits, ContainerEdits)


@given(EDITS, st.data())
def test_an_answer_that_is_cut_off_or_changed_is_no_other_exception(edits, data):
    content = bytearray(answer(NAME, edits, cdi=True).SerializeToString())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255))
    read(bytes(content))
    read(bytes(content[:at]))


@pytest.mark.parametrize(
    "message",
    [
        pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name="nvidia.com/gpu=0")]),
        pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=f"vgpu.dev/share={NAME}0")]),
        pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name="vgpu.dev/share")]),
        pb.ContainerAllocateResponse(annotations={"vgpu.dev/share": "../../etc/passwd"}),
        pb.ContainerAllocateResponse(annotations={"vgpu.dev/share": NAME.upper()}),
        pb.ContainerAllocateResponse(
            cdi_devices=[pb.CDIDevice(name=f"vgpu.dev/share={NAME}")],
            annotations={"vgpu.dev/share": NAME[::-1]},
        ),
    ],
    ids=["foreign", "longer", "no-name", "path", "upper-case", "two"],
)
def test_what_is_not_one_name_of_ours_is_none(message):
    assert read(message.SerializeToString())[0] == ""


def test_a_name_beside_a_foreign_device_is_found():
    devices = [pb.CDIDevice(name=f"{kind}={NAME}") for kind in ("other/kind", "vgpu.dev/share")]
    message = pb.ContainerAllocateResponse(cdi_devices=devices)
    assert read(message.SerializeToString())[0] == NAME
