"""The Containerfile, and how the test bed reads it."""

import tomllib

import pytest

from tests.support.bed.containerfile import Instruction, arguments, configuration, instructions
from tests.support.environment import ROOT

TEXT = (ROOT / "deploy" / "Containerfile").read_text()


def test_our_image_is_run_by_a_user_without_rights():
    assert configuration(TEXT) == {
        "Entrypoint": ["vgpu"],
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "PYTHONUNBUFFERED=1", "MALLOC_ARENA_MAX=1"],
        "User": "65532:65532",
        "WorkingDir": "/",
    }


def test_its_base_can_be_chosen_and_requirements_come_with_hashes():
    assert arguments(TEXT)["BASE"]
    assert Instruction("FROM", "${BASE} AS python") in instructions(TEXT)
    assert "--require-hashes" in arguments(TEXT)["LOCKED"]
    for word, text in instructions(TEXT):
        for command in text.split("&&") if word == "RUN" else ():
            if "pip install" in command:
                assert "${INSTALL}" in command
                assert "${LOCKED}" in command or "--no-index" in command


def test_all_that_the_wheel_is_built_of_is_copied():
    copied = {
        source.rstrip("/")
        for word, text in instructions(TEXT)
        if word == "COPY" and not text.startswith("--")
        for source in text.split()[:-1]
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    locks = {f"requirements/{name}.lock" for name in ("build", "runtime")}
    assert copied == {*wheel, *locks, "pyproject.toml", "README.md", "LICENSE"}


def test_what_the_wheel_is_built_with_is_locked_as_in_development():
    def pins(name):
        lines = (ROOT / "requirements" / name).read_text().splitlines()
        return {line.removesuffix(" \\") for line in lines if line[:1].isalpha()}

    assert pins("build.lock") <= pins("dev.lock")
    assert any(pin.startswith("hatchling==") for pin in pins("build.lock"))


# ---------------------------------------------------------------- the reader


def test_instructions_go_on_over_lines_and_comments():
    text = "# a comment\nRUN one \\\n # in between\n && two\n\nuser 1\n"
    assert list(instructions(text)) == [Instruction("RUN", "one && two"), Instruction("USER", "1")]


def test_the_last_stage_counts_with_what_it_takes_from_another():
    text = """\
        FROM debian AS base
        ENV A=1 B="two words"
        USER root
        FROM base AS other
        ENTRYPOINT ["other"]
        FROM base
        ENV A=3
        CMD ["run"]
    """
    assert configuration(text) == {"Env": ["A=3", "B=two words"], "User": "root", "Cmd": ["run"]}


def test_only_arguments_before_the_first_stage_count():
    assert arguments("ARG A=1\nARG B='x y'\nFROM x\nARG C=3\n") == {"A": "1", "B": "x y"}


@pytest.mark.parametrize("text", ["FROM a\nHEALTHCHECK NONE", "FROM a AS b c", "FROM a\nADD x y"])
def test_what_it_does_not_know_is_an_error(text):
    with pytest.raises(ValueError, match="not understood"):
        configuration(text)
