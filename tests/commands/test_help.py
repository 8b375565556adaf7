"""`--help` of every command: what it is for, and how it is called."""

import pytest
from click.testing import CliRunner

from vgpu.program.failures import status_of
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


@pytest.mark.parametrize("words", [(), ("inspect",), ("explain", "pod")])
def test_help_before_a_command_is_that_commands_help(words):
    asked = CliRunner().invoke(main, [*words, "--help"], prog_name="vgpu")
    typed = CliRunner().invoke(main, ["help", *words], prog_name="vgpu")
    assert (typed.exit_code, typed.output) == (0, asked.output)


@pytest.mark.parametrize("words", [(), ("explain",), ("reconcile",)])
def test_a_group_without_a_command_prints_its_help_line_by_line(words, capsys):
    def printed(*more):
        call = [*words, *more]
        status = status_of(lambda: main(call, prog_name="vgpu", standalone_mode=False))
        return status, *capsys.readouterr()

    _, asked, _ = printed("--help")
    assert asked.startswith("Usage: ")
    assert printed() == (2, "", asked)


def test_help_of_an_unknown_command_names_the_similar_one():
    typed = CliRunner().invoke(main, ["help", "inspct"], prog_name="vgpu")
    assert typed.exit_code == 2
    assert "Did you mean 'inspect'?" in typed.output


@pytest.mark.parametrize("word", ["version", "-V"])
def test_the_version_by_each_name(word):
    done = CliRunner().invoke(main, [word], prog_name="vgpu")
    asked = CliRunner().invoke(main, ["--version"], prog_name="vgpu")
    assert (done.exit_code, done.output) == (0, asked.output)
    assert done.output.startswith("vgpu ")
