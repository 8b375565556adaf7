"""What a Containerfile says, as far as ours does: arguments, and the configuration of its image.

    arguments(text)["BASE"]
    configuration(text)     # of the last stage, as an OCI image has it

RUN and COPY are not carried out. An instruction that this does not know is an error: an image made
without a container daemon would miss it.
"""

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

INERT = frozenset({"ARG", "COPY", "RUN"})
"""What changes a stage's files, or nothing."""

_STAGE = re.compile(r"(?P<base>\S+)(?: +AS +(?P<name>\S+))?")


class Instruction(NamedTuple):
    """One of them; ``text`` is all that comes after the word."""

    word: str
    text: str


def instructions(text: str) -> Iterator[Instruction]:
    """All of them, continued lines joined, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield Instruction(word.upper(), rest.strip())


def arguments(text: str) -> dict[str, str]:
    """The arguments that have a default: those before the first stage."""
    found = {}
    for word, rest in instructions(text):
        if word == "FROM":
            break
        if word == "ARG":
            (pair,) = shlex.split(rest)
            name, _, value = pair.partition("=")
            found[name] = value
    return found


def configuration(text: str) -> dict[str, Any]:
    """Entrypoint, Env, User and WorkingDir of the last stage, with what it takes from others.

    Raises:
        ValueError: an instruction is not known.
    """
    stages: dict[str, dict[str, Any]] = {}
    config: dict[str, Any] = {}
    for word, rest in instructions(text):
        if word == "FROM":
            stage = _STAGE.fullmatch(rest)
            if stage is None:
                raise ValueError(f"FROM {rest}: not understood")
            config = {"Env": [], **json.loads(json.dumps(stages.get(stage["base"], {})))}
            stages[stage["name"] or ""] = config
        elif word == "ENV":
            config["Env"] = _with(config["Env"], shlex.split(rest))
        elif word in ("ENTRYPOINT", "CMD"):
            config[word.capitalize()] = json.loads(rest)
        elif word == "USER":
            config["User"] = rest
        elif word == "WORKDIR":
            config["WorkingDir"] = rest
        elif word not in INERT:
            raise ValueError(f"{word}: not understood")
    return config


def _with(env: list[str], pairs: list[str]) -> list[str]:
    """An environment with more in it; the last word about a variable counts."""
    new = {pair.partition("=")[0]: pair for pair in (*env, *pairs)}
    return list(new.values())
