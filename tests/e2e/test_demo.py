"""What `vgpu demo` shows: the exporter, a plan made and applied, and a cluster to try more on."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from simulator.demo_cluster import demo_cluster
from tests.e2e.running_demo import COMMAND, RunningDemo
from tests.support.environment import ROOT
from tests.support.live import parse
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpucli.demo.bill_days import MadeUp
from vgpucli.demo.command import command
from vgpucli.demo.walkthrough import PODS_BILLED

pytestmark = pytest.mark.slow

REFUSED, HEIR = "ranker-84b5c6d7f-9tq4m", "tts-5c6d7f8b9-7wzrn"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with RunningDemo(tmp_path_factory.mktemp("demo")) as demo:
        yield demo


@pytest.fixture
def env(running):
    """The variables that a shell has after the one line that the demo asks to type."""
    (source,) = re.findall(r"^    (\. \S+/env) ", running.printed(), re.MULTILINE)
    shell = ["env", "-i", "/bin/sh", "-c", f"{source} && /usr/bin/env"]
    done = subprocess.run(shell, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def vgpu(*words, env):
    done = subprocess.run(
        [sys.executable, "-m", "vgpu", *words],
        env=env | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * WAIT_SECONDS,
    )
    assert done.stderr == ""
    return done


def read(url):
    with urlopen(url, timeout=WAIT_SECONDS) as answer:
        return answer.read().decode()


def test_a_plan_is_shown_and_applied_and_the_next_one_has_nothing_to_do(running):
    _, applied, planned = running.printed().split("\n$ vgpu reconcile ")
    assert applied.startswith("apply --yes --audit=")
    wanted = int(re.search(r"^To be done: (\d+)$", applied, re.MULTILINE)[1])
    done = re.findall(r"^  done +\w+: (?:evict|clear) (.+)$", applied, re.MULTILINE)
    assert len(done) == wanted > 5
    assert f"recsys/{REFUSED}" in done
    assert f"\n{wanted} done\n" in applied
    assert planned.startswith("plan\n")
    assert "To be done" not in planned
    assert re.search(r"^0 actions, [1-9]\d* skipped", planned, re.MULTILINE)


def test_pods_are_placed_on_a_node_that_joins_and_one_of_them_waits(running):
    """By the real scheduler; the node's sum suffices for the last pod, but no GPU does."""
    placed = re.findall(r"^    (\S+) +\d+ GiB   (.+)$", running.printed(), re.MULTILINE)
    assert placed == [
        ("tokenizer-0", "gpu-node-4, GPU 0"),
        ("train-0", "gpu-node-4, GPU 0"),
        ("train-1", "gpu-node-4, GPU 1"),
        ("train-2", "waits: no GPU has enough free memory"),
    ]
    assert "GPU 1: 32.0 GiB of 80.0 GiB free, 1 share" in running.printed()


def test_the_exporters_page_is_that_of_the_pods_after_it(running):
    def page_where_the_heir_computes():
        series = parse(read(f"{running.url}/metrics"))
        used = [
            value
            for name, value in series.items()
            if name.startswith("vgpu_container_memory_used_bytes") and f'pod="{HEIR}"' in name
        ]
        return series if used and used[0] > 0 else None

    what = f"{HEIR} uses memory"
    wait_until(page_where_the_heir_computes, what, context=running.printed, pause=0.2)
    gone = f"{REFUSED} is gone"  # a sample may be between the two repairs
    wait_until(lambda: REFUSED not in read(running.url), gone, context=running.printed, pause=0.2)
    series = parse(read(f"{running.url}/metrics"))
    assert HEIR in read(running.url)
    assert not any(f'pod="{REFUSED}"' in name for name in series)


def test_the_commands_that_the_demo_suggests_can_be_run(running, env):
    commands = re.findall(r"^    \S+ -m vgpu (.*)$", running.printed(), re.MULTILINE)
    inspect, explain, fit, doctor, restore, plan, bill = (
        shlex.split(command, comments=True) for command in commands
    )
    assert "\nThe pod fails at step nodes: " in vgpu(*explain, env=env).stdout
    fitting = vgpu(*fit, env=env).stdout
    assert "Defragmentation plan: after 1 eviction 1 pod fits." in fitting
    assert re.search(
        r"^training/tokenizer-0 +gpu-node-4 +StatefulSet tokenizer .+ gpu-node-4$",
        fitting,
        re.MULTILINE,
    )
    diagnosed = vgpu(*doctor, env=env)
    assert (diagnosed.returncode, "\nerror " in "\n" + diagnosed.stdout) == (3, True)
    shown = vgpu(*inspect, env=env)
    assert shown.returncode == 0
    assert all(node.node in shown.stdout for node in demo_cluster(0.0).nodes)
    assert "4 irreversible, 3 done" in vgpu(*restore, env=env).stdout
    again = vgpu(*plan, env=env)
    assert again.returncode == 3
    assert "To be done: 3\n" in again.stdout
    billed = vgpu(*bill, env=env).stdout
    assert re.search(r"^total +840\.00 .* 1,411\.20$", billed, re.MULTILINE)
    assert f"\nnote: this is no measured bill: {MadeUp(PODS_BILLED).generator}\n" in billed


def test_kubectl_reads_the_demos_cluster(env, tools, tmp_path):
    """By discovery, as it asks every server."""

    def kubectl(*words):
        command = [tools.path("kubectl"), f"--cache-dir={tmp_path}", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    assert re.search(r"^training +train-2 ", kubectl("get", "pods", "-A"), re.MULTILINE)
    described = kubectl("describe", "node", "gpu-node-4")
    assert re.search(r"^  training +train-0 ", described, re.MULTILINE)


def test_the_audit_is_beside_the_kubeconfig(env):
    audit = Path(env["KUBECONFIG"]).with_name("audit.jsonl")
    assert len(audit.read_text().splitlines()) >= 14


def test_a_port_in_use_gets_the_line_to_type(running):
    taken = running.url.removeprefix("http://")
    port = int(taken.rpartition(":")[2])
    flag = "--web.listen-address="
    done = subprocess.run(
        [*COMMAND, flag + taken],
        env={name: text for name, text in os.environ.items() if not name.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * WAIT_SECONDS,
    )
    assert (done.returncode, done.stdout) == (1, "")
    line = re.fullmatch(
        rf"Error: another program uses {taken}\. Type: \S+ -m vgpu demo {flag}127\.0\.0\.1:(\d+)\n",
        done.stderr,
    )
    assert line, done.stderr
    assert int(line[1]) > port


def test_by_default_only_this_machine_can_open_the_page():
    with command.make_context("demo", []) as context:
        assert context.params["web_listen_address"] == ("127.0.0.1:9394",)


def test_the_help_is_about_the_demo():
    text = CliRunner().invoke(command, ["--help"]).output
    flags = re.findall(r"^  (?:-h, )?(--[a-z.-]+)", text, re.MULTILINE)
    assert flags == ["--web.listen-address", "--sample.interval", "--once", "--log.level", "--help"]
    assert "No GPU and no cluster are needed" in text


def test_a_flag_of_the_exporter_that_the_help_does_not_list_is_taken():
    with command.make_context("demo", ["--no-collector.xid"]) as context:
        assert context.params["collector_xid"] is False


def test_once_prints_a_page_and_nothing_else():
    done = subprocess.run(
        [*COMMAND, "--once"], capture_output=True, text=True, check=True, timeout=2 * WAIT_SECONDS
    )
    assert done.stdout.startswith("# HELP ")
    series = parse(done.stdout)
    assert 'pod="tts-5c6d7f8b9-k8x2v"' in "".join(series)  # nothing is repaired
    faq = (ROOT / "docs" / "faq.md").read_text()
    bounds = re.search(
        r"(\d+) to (\d+) for each container with a share, (\d+) to (\d+) for each GPU, "
        r"and (\d+) to (\d+) for the node",
        faq,
    )
    pods = [name for name in series if re.search(r'[{,]pod(name|_uid)?="[^"]', name)]
    gpus = [name for name in series if re.search(r'[{,](device|deviceuuid|uuid)="[^"]', name)]
    of_gpus = len({*gpus} - {*pods})
    containers = sum(name.startswith("vgpu_container_info{") for name in series)
    devices = sum(name.startswith("vgpu_gpu_up{") for name in series)
    found = (len(pods) / containers, of_gpus / devices, len(series) - len(pods) - of_gpus)
    low, high = bounds.groups()[::2], bounds.groups()[1::2]
    assert all(int(a) <= x <= int(b) for a, x, b in zip(low, found, high, strict=True)), found
