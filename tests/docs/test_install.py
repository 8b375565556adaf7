"""The page about installation: a whole line or a whole file there can be used as it is."""

import re
import shlex

from tests.support.doc_pages import BLOCK
from tests.support.environment import ROOT
from vgpu import __version__

PAGE = (ROOT / "docs" / "install.md").read_text()
UNIT = (ROOT / "deploy" / "systemd" / "vgpu-exporter.service").read_text()


def section(title):
    return re.search(rf"^## {title}\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)[1]


def lines_of(title):
    blocks = BLOCK.findall(section(title))
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("# ")]


def test_without_an_image_each_way_is_one_line():
    no_registry, one_machine = lines_of("Without an image")
    assert no_registry == (
        f"make image && ctr -n k8s.io images import dist/vgpu-{__version__}-local-image.tar"
    )
    assert shlex.split(one_machine)[2:5] == ["pipx", "install", "."]


def test_pipx_installs_what_the_systemd_unit_starts():
    _, one_machine = lines_of("Without an image")
    folder = re.search(r"PIPX_BIN_DIR=(\S+)", one_machine)[1]
    assert f"ExecStart={folder}/vgpu exporter" in UNIT
    assert "install -m 644 deploy/systemd/vgpu-exporter.service /etc/systemd/system/" in one_machine
    assert one_machine.endswith("systemctl enable --now vgpu-exporter")
