"""Several exporters on one screen: each GPU has its node, and a silent exporter hides no other."""

from msgspec.structs import replace

from tests.commands.test_top_frame import GIB, GPU, share, state, text
from vgpu.inventory import unit_doubt
from vgpu.model.objects import Node
from vgpu.model.units import MIB
from vgpu.schemes.volcano.row import VOLCANO_ROW
from vgpucli.top.frame import ScreenState, grown
from vgpucli.top.reading import PageProcess, PageReading
from vgpucli.top.source import SeveralExporters, merged


def page(*shares, **known):
    return state(*shares, **known).reading


def shown(reading):
    return text(state(*reading.shares, devices=reading.devices, failing=reading.failing))


def test_each_gpu_has_its_node():
    lines = shown(merged({"a:9394": page(share("train")), "b:9394": page()})).splitlines()
    assert any(line.startswith(" a:9394  GPU 0  NVIDIA A10") for line in lines)
    assert any(line.startswith(" b:9394  GPU 0  NVIDIA A10") for line in lines)
    assert sum("train" in line for line in lines) >= 1


def test_a_silent_exporter_is_named_and_hides_no_other():
    reading = merged({"a": page(share("train"), failing=("shim",)), "b": "connection refused"})
    assert isinstance(reading, PageReading)
    assert reading.failing == ("b: connection refused", "shim on a")
    assert "failing: b: connection refused, shim on a" in shown(reading)
    assert merged({"a": "no", "b": "none"}) == "a: no; b: none"


def test_the_processes_of_all_nodes_are_together():
    one, two = (replace(page(), processes=(PageProcess(pid, GPU.uuid),)) for pid in (1, 2))
    assert [row.pid for row in merged({"a": one, "b": two, "c": page()}).processes] == [1, 2]
    assert merged({"a": page()}).processes is None


def test_nodes_with_equal_gpus_and_pods_are_not_mixed():
    """As two simulated nodes are, or one exporter under two names."""
    one, two = (
        page(
            share("train", used=used),
            processes=(PageProcess(pid, GPU.uuid, "", "", "main", "uid-train"),),
        )
        for used, pid in ((GIB, 1), (2 * GIB, 2))
    )
    reading = merged({"a": one, "b": two})
    shown_state = ScreenState("two", reading, grown({}, reading), processes=True)
    lines = text(shown_state).splitlines()
    assert [line.split()[0] for line in lines if "train" in line] == ["ml/train/main"] * 2
    assert [line.split()[1] for line in lines if "pid" in line] == ["1", "2"]
    first = next(number for number, line in enumerate(lines) if line.startswith(" a "))
    assert "1.0G" in lines[first + 2]
    assert "pid 1 " in lines[first + 3]


def test_only_the_node_with_an_unconfirmed_unit_is_marked():
    doubt = unit_doubt(Node(""), VOLCANO_ROW, MIB, [8 * MIB])
    marked = replace(page(), units=(doubt,), devices=(replace(GPU, unit_confirmed=False),))
    reading = merged({"a": marked, "b": page()})
    lines = text(ScreenState("two", reading)).splitlines()
    assert "unit unconfirmed, 8 or more would fit (--volcano.memory-factor 1)" in lines[1]
    (line,) = (line for line in lines[2:] if "unit unconfirmed" in line)
    assert line.startswith(" a  GPU 0")


def test_all_are_asked_and_named_by_their_address():
    asked = []
    source = SeveralExporters(["http://a:1", "https://u@b:2/x"], lambda url: url)
    reading = source.read(lambda exporter: asked.append(exporter) or page())
    assert sorted(asked) == ["http://a:1", "https://u@b:2/x"]
    assert [device.node for device in reading.devices] == ["a:1", "b:2"]
    assert source.name == "2 exporters"
    assert source.leave(3) == 3
