"""`vgpu completion`: scripts that their shells accept, and that complete."""

import os
import subprocess
import sys

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


def test_without_a_cluster_nothing_is_offered_and_nothing_is_printed(tmp_path, capfd):
    for kubeconfig in (tmp_path / "none", tmp_path):
        flags = ("--kubeconfig", str(kubeconfig))
        assert offered("explain", "node", "", kubeconfig=flags) == []
    assert capfd.readouterr() == ("", "")
