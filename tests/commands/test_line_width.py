"""Sentences fit the terminal; rows of tables, and lines to copy, stay whole."""

import os
import re
import sys
import threading
import time
from io import StringIO

import pytest

from simulator.apiserver import ApiServer
from simulator.cluster import SimulatedCluster
from simulator.demo_cluster import demo_cluster
from vgpu.program.exporter_pod import port_forward
from vgpucli.demo.walkthrough import UNITS
from vgpucli.main import main

POD = "batch/embeddings-29361600-q9vxz"
COMMANDS = (
    "inspect",
    "inspect gpu-node-1",
    "inspect --by namespace",
    f"fit --pod {POD}",
    f"fit --pod {POD} --pods 9 --defragment",
    f"explain pod {POD}",
    "explain pod research/sweep-3",
    "explain node gpu-node-1",
    "explain node gpu-node-3",
    "explain gpu gpu-node-1/0",
    "doctor",
    "reconcile plan",
    "reconcile report",
    "reconcile apply --server-dry-run",
)
"""The commands that answer about the demo's cluster."""

WHOLE = re.compile(r"\S {2,}\S|^ *(kubectl|vgpu) ")
"""A row of a table, or a line to copy."""

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory):
    """Of the demo's cluster before its repair."""
    now = time.time()
    with ApiServer(SimulatedCluster(demo_cluster(now), now).store) as api:
        file = tmp_path_factory.mktemp("demo") / "kubeconfig"
        file.write_text(api.kubeconfig())
        yield str(file)


@pytest.fixture
def on_terminal(kubeconfig, monkeypatch):
    """Run a command on a terminal with a number of columns: the lines that it prints."""
    for name, value in {**UNITS, "KUBECONFIG": kubeconfig, "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)

    def run(words, columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        master, slave = os.openpty()
        printed = StringIO()
        reader = threading.Thread(target=_copy, args=(master, printed))
        with os.fdopen(slave, "w") as terminal, monkeypatch.context() as patch:
            reader.start()
            patch.setattr(sys, "stdout", terminal)
            patch.setattr(sys, "stderr", terminal)
            main.main(words.split(), prog_name="vgpu", standalone_mode=False)
        reader.join()
        os.close(master)
        return ESCAPES.sub("", printed.getvalue()).replace("\r", "").splitlines()

    return run


def _copy(terminal, text):
    """Until no process has the terminal open."""
    content = b""
    while True:
        try:
            content += os.read(terminal, 65536)
        except OSError:
            text.write(content.decode())
            return


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_no_sentence_is_longer_than_the_terminal(on_terminal, words, columns):
    lines = on_terminal(words, columns)
    assert lines
    assert [line for line in lines if len(line) > columns and not WHOLE.search(line)] == []


@pytest.mark.parametrize("columns", [60, 200])
def test_comments_of_a_file_are_short_on_every_terminal(on_terminal, columns):
    comments = [line for line in on_terminal("quota manifests", columns) if line.startswith("#")]
    assert max(map(len, comments)) in range(60, 81)


def test_elsewhere_a_sentence_is_one_line(kubeconfig, capsys):
    arguments = ["inspect", "--by", "namespace", "--kubeconfig", kubeconfig]
    main.main(arguments, prog_name="vgpu", standalone_mode=False)
    assert "\nnote: used and idle are not shown" in (text := capsys.readouterr().out)
    assert text.endswith(" asks who measures\n")


@pytest.mark.parametrize(
    ("page", "last"),
    [
        ("", f"  {port_forward('gpu-node-3')}"),
        ("gpu-node-3=http://localhost:1/", "The page of the node's exporter: http://localhost:1/"),
    ],
)
def test_explain_node_ends_with_the_way_to_the_exporters_page(on_terminal, monkeypatch, page, last):
    monkeypatch.setenv("VGPU_DEMO_PAGE", page)
    assert on_terminal("explain node gpu-node-3", 80)[-1] == last


def test_a_node_of_the_demo_without_an_exporter_has_no_page(on_terminal, monkeypatch):
    monkeypatch.setenv("VGPU_DEMO_PAGE", "gpu-node-1=http://localhost:1/")
    assert not any("exporter" in line for line in on_terminal("explain node gpu-node-3", 80))
