"""The unit for a machine without Kubernetes."""

import re
import shlex
import subprocess

import pytest

from exporter.flags import options_from
from tests.support.deploy_objects import parse
from tests.support.environment import ROOT, required_tool

UNIT = ROOT / "deploy" / "systemd" / "vgpu-exporter.service"
PROGRAM = "/opt/vgpu/bin/vgpu"
EXPOSURE = 20
"""What systemd may find exposed at most, of 100: the network, the driver's devices, /proc."""


def settings():
    joined = UNIT.read_text().replace("\\\n", "")
    return re.findall(r"^(\w+)=(.*)$", joined, re.MULTILINE)


def test_the_exporter_takes_its_command_line_and_asks_for_nothing_of_kubernetes():
    (line,) = (value for name, value in settings() if name == "ExecStart")
    program, *args = shlex.split(line)
    assert program == PROGRAM
    collectors = options_from(parse(args)).collectors
    assert collectors == {"nvml", "xid", "shim", "process"}


def test_it_has_no_rights_but_the_drivers_devices():
    unit_settings = dict(settings())
    assert unit_settings["DynamicUser"] == "yes"
    assert unit_settings["CapabilityBoundingSet"] == unit_settings["AmbientCapabilities"] == ""
    assert unit_settings["DevicePolicy"] == "closed"
    assert [value for name, value in settings() if name == "DeviceAllow"] == ["char-nvidia* rw"]


def test_who_makes_the_drivers_devices_is_started_before_it():
    unit_settings = dict(settings())
    assert unit_settings["Wants"] in unit_settings["After"].split()


@pytest.fixture
def analyze(tmp_path):
    """Runs systemd-analyze on the unit with a program that is there."""
    program = required_tool("systemd-analyze", "systemd")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(PROGRAM, "/bin/true"))

    def run(*args):
        command = [program, *args, unit]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def test_systemd_understands_every_line(analyze):
    result = analyze("verify", "--man=no")
    assert (result.returncode, result.stderr) == (0, "")


def test_systemctl_enables_it_for_the_start_of_the_machine(tmp_path):
    """On a folder in place of the machine's own one, so that nothing starts."""
    systemctl = required_tool("systemctl", "systemd")
    units = tmp_path / "etc" / "systemd" / "system"
    units.mkdir(parents=True)
    (units / UNIT.name).write_bytes(UNIT.read_bytes())
    subprocess.run(
        [systemctl, f"--root={tmp_path}", "enable", UNIT.stem], check=True, capture_output=True
    )
    (link,) = units.glob("*.wants/*")
    assert link.relative_to(units).parts == ("multi-user.target.wants", UNIT.name)


def test_systemd_finds_little_exposed(analyze):
    result = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager")
    assert result.returncode == 0, result.stdout
