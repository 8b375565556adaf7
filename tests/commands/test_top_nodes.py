"""Several exporters on one screen: each GPU has its node, and a silent exporter hides no other."""

from tests.commands.test_top_frame import share, state, text
from vgpu.commands.top_nodes import SeveralExporters, merged
from vgpu.commands.top_reading import PageReading


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


def test_all_are_asked_and_named_by_their_address():
    asked = []
    source = SeveralExporters(["http://a:1", "https://u@b:2/x"], lambda url: url)
    reading = source.read(lambda exporter: asked.append(exporter) or page())
    assert sorted(asked) == ["http://a:1", "https://u@b:2/x"]
    assert [device.node for device in reading.devices] == ["a:1", "b:2"]
    assert source.name == "2 exporters"
    assert source.leave(3) == 3
