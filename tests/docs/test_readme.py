"""The first screen of the README: how a stranger installs vgpu, from files that a release has."""

import re

from deploy.generate import CHART
from deploy.manifests import MANIFESTS
from tests.support.environment import ROOT
from vgpu import __version__

SCREEN = 45
"""Lines that are seen without scrolling."""

LINES = (ROOT / "README.md").read_text().splitlines()
COMMANDS = [line.removeprefix("$ ") for line in LINES[:SCREEN] if line.startswith("$ ")]


def test_the_first_screen_installs_wheel_chart_and_manifests_of_this_version():
    wheel, chart, manifests = COMMANDS[:3]
    assert wheel.split()[:3] == ["pipx", "install", f"./vgpu-{__version__}-py3-none-any.whl"]
    assert chart.split()[:4] == ["helm", "install", "vgpu", f"./{CHART.name}-{__version__}.tgz"]
    assert manifests.startswith(f"tar xf vgpu-{__version__}-manifests.tar.gz && kubectl apply ")
    files = re.findall(rf"vgpu-{re.escape(__version__)}-manifests/(\S+)", manifests)
    assert files == ["namespace.yaml", "exporter.yaml"]
    assert set(files) <= set(MANIFESTS)
