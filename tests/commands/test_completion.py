"""`vgpu completion`: scripts that their shells accept, and that complete."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

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
