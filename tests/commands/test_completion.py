"""`vgpu completion`: scripts that their shells accept, and that complete."""

import json
import os
import subprocess
import sys

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from tests.support import sample_cluster as sample
from tests.support.environment import ROOT, required_tool
from vgpucli.main import COMMANDS, main


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_for_vgpu(shell):
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert f"_VGPU_COMPLETE={shell}_complete" in result.output


def test_an_unknown_shell_is_refused():
    result = CliRunner().invoke(main, ["completion", "tcsh"])
    assert result.exit_code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in result.output


def test_bash_completes_commands_and_flags(tmp_path):
    """The script is sourced by a real bash, and asked as a person's Tab would."""
    bash = required_tool("bash", "bash")
    vgpu = tmp_path / "vgpu"
    vgpu.write_text(f'#!/bin/sh\nexec {sys.executable} -m vgpu "$@"\n')
    vgpu.chmod(0o755)
    script = """
        source <(vgpu completion bash)
        complete_() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _vgpu_completion vgpu; echo "${COMPREPLY[*]}"; }
        complete_ vgpu ""
        complete_ vgpu inspect --sch
        complete_ vgpu inspect --scheme g
    """
    done = subprocess.run(
        [bash, "--norc", "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
        },
    )
    commands, flags, schemes = done.stdout.splitlines()
    assert set(commands.split()) == set(COMMANDS)
    assert flags == "--scheme"
    assert schemes.split() == ["gpushare", "gaia"]


ITEMS = [
    *(
        sample.volcano_node(name, number)
        for number, name in enumerate(("gpu-1", "gpu-2", "cpu-1"), 1)
    ),
    sample.pod("train-0", limits=sample.volcano_limits(1)),
    sample.pod("train-1", limits=sample.volcano_limits(1)),
    sample.pod("web", limits=sample.volcano_limits(1), namespace="mlops"),
    *(
        {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}
        for name in ("ml", "mlops", "free")
    ),
]


def offered(*words, kubeconfig):
    """What a shell offers in place of the last word."""
    *typed, incomplete = words
    completion = BashComplete(main, {}, "vgpu", "_VGPU_COMPLETE")
    typed[1:1] = [] if typed[0] in ("explain", "node-resource", "quota") else kubeconfig
    typed[2:2] = kubeconfig if typed[0] in ("explain", "node-resource", "quota") else []
    return [each.value for each in completion.get_completions(list(typed), incomplete)]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("explain", "node", ""), ["cpu-1", "gpu-1", "gpu-2"]),
        (("explain", "node", "gpu"), ["gpu-1", "gpu-2"]),
        (("explain", "gpu", "cpu"), ["cpu-1/"]),
        (("explain", "pod", "m"), ["ml/", "mlops/"]),
        (("explain", "pod", "ml/t"), ["ml/train-0", "ml/train-1"]),
        (("explain", "pod", "mlo"), ["mlops/web"]),
        (("inspect", "gpu-2"), ["gpu-2"]),
        (("inspect", "--namespace", "f"), ["free"]),
        (("fit", "--pod", "ml/train-1"), ["ml/train-1"]),
        (("fit", "--drain", "g"), ["gpu-1", "gpu-2"]),
        (("quota", "manifests", "-n", "ml"), ["ml", "mlops"]),
        (("node-resource", "set", "c"), ["cpu-1"]),
    ],
)
def test_a_shell_offers_the_names_of_the_cluster(cluster, words, names):
    assert offered(*words, kubeconfig=cluster) == names


def completed(*words):
    """What a shell offers in place of the last word: texts, or the kind of path."""
    *typed, incomplete = words
    completion = BashComplete(main, {}, "vgpu", "_VGPU_COMPLETE")
    items = completion.get_completions(list(typed), incomplete)
    return [each.value if each.type == "plain" else each.type for each in items]


@pytest.fixture
def dump(tmp_path):
    """A dump with the objects and without Namespaces."""
    items = [item for item in ITEMS if item["kind"] != "Namespace"]
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    return str(file)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("explain --from {} node gpu", ["gpu-1", "gpu-2"]),
        ("explain node --from {} gpu", ["gpu-1", "gpu-2"]),
        ("explain gpu --from {} cpu", ["cpu-1/"]),
        ("explain --from {} pod m", ["ml/", "mlops/"]),
        ("explain --from {} pod ml/t", ["ml/train-0", "ml/train-1"]),
        ("explain --from {} ml/t", ["ml/train-0", "ml/train-1"]),
        ("inspect --from {} gpu-2", ["gpu-2"]),
        ("inspect --from {} --namespace mlo", ["mlops"]),
        ("fit --from {} --pod ml/train-1", ["ml/train-1"]),
        ("fit --from {} --drain g", ["gpu-1", "gpu-2"]),
        ("quota manifests --from {} -n ml", ["ml", "mlops"]),
        ("reconcile plan --from {} --namespace ml", ["ml", "mlops"]),
        ("reconcile --from {} --plan-namespace ml", ["ml", "mlops"]),
    ],
)
def test_a_shell_offers_the_names_of_a_dump(dump, words, names):
    assert completed(*words.format(dump).split()) == names


def test_a_dump_that_cannot_be_read_offers_nothing_and_prints_nothing(tmp_path, capfd):
    broken = tmp_path / "broken.json"
    broken.write_text("no JSON")
    for path in (broken, tmp_path / "none", "-"):
        assert completed("explain", "--from", str(path), "node", "") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("group", ["reconcile", "explain", "quota"])
def test_the_flags_of_a_groups_commands_are_offered_before_the_command(group):
    root = click.Context(main, resilient_parsing=True)
    commands = main.get_command(root, group).commands
    for option in (each for command in commands.values() for each in command.params):
        if isinstance(option, click.Option):
            assert {*option.opts} <= {*completed(group, "-")}


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        ("reconcile --ru", ["--rule"]),
        ("reconcile plan --ru", ["--rule"]),
        ("reconcile --rule refu", ["refused=off", "refused=plan", "refused=apply"]),
        ("reconcile apply --rule stale_lock=a", ["stale_lock=apply"]),
        ("reconcile plan --rule stale_", ["stale_lock=", "stale_handshake="]),
        ("reconcile run --mode a", ["apply"]),
        ("reconcile --scope n", ["node"]),
        ("reconcile plan --act-on-scheme n", ["nvidia"]),
        ("reconcile restore audit", ["file"]),
    ],
)
def test_a_shell_offers_the_values_of_the_reconcilers_flags(words, offers):
    assert sorted(completed(*words.split())) == sorted(offers)


def test_each_flag_for_a_path_a_node_or_a_namespace_offers_them(cluster, monkeypatch):
    """The metavar names what a value is."""
    monkeypatch.setenv("KUBECONFIG", cluster[1])
    expected = {"FILE": "file", "SOCKET": "file", "DIR": "dir", "FOLDER": "dir"}
    expected |= {"NODE": "gpu-1", "NAMESPACE": "ml", "PLAN-NAMESPACE": "ml"}
    seen = set()
    for words, command in every_command("", main):
        for option in command.params:
            if isinstance(option, click.Option) and option.metavar in expected:
                context = click.Context(command, resilient_parsing=True)
                items = option.shell_complete(context, "")
                offered = {each.value if each.type == "plain" else each.type for each in items}
                assert expected[option.metavar] in offered, (words, option.opts)
                seen.add(option.metavar)
    assert seen == {*expected}


def every_command(words, command):
    """All commands, each with the words that call it."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command, resilient_parsing=True)
        for name in command.list_commands(context):
            yield from every_command(f"{words} {name}", command.get_command(context, name))


def test_without_a_cluster_nothing_is_offered_and_nothing_is_printed(tmp_path, capfd):
    for kubeconfig in (tmp_path / "none", tmp_path):
        flags = ("--kubeconfig", str(kubeconfig))
        assert offered("explain", "node", "", kubeconfig=flags) == []
    assert capfd.readouterr() == ("", "")
