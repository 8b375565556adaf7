"""`--help` of every command: what it is for, and how it is called."""

import pytest
from click.testing import CliRunner

from vgpucli.main import COMMANDS, main

SUBCOMMANDS = (
    ("topology", "serve"),
    ("node-resource", "set"),
    ("node-resource", "unset"),
    *(("reconcile", name) for name in ("plan", "apply", "run", "report", "restore")),
)


@pytest.mark.parametrize("words", [*((name,) for name in COMMANDS), *SUBCOMMANDS])
def test_every_commands_help_shows_how_it_is_called(words):
    result = CliRunner().invoke(main, [*words, "--help"], prog_name="vgpu")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: vgpu {' '.join(words)} ")
    calls = result.output.split("Options:")[1]
    assert f"vgpu {' '.join(words)} " in calls
    assert all(len(line) <= 100 for line in result.output.splitlines())
