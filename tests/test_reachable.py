"""Nothing in the product is there that no command reaches."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.environment import ROOT
from vgpu.cli import COMMANDS

PACKAGES = ("vgpu", "exporter", "reconciler", "deviceplugin", "scheduler")

ENTRY_POINTS = frozenset(
    {"vgpu.cli", "vgpu.__main__", *(target.split(":")[0] for target, _ in COMMANDS.values())}
)

FOR_KUBESHARE = "KubeShare's protocol, for its controllers and token daemon that are to come"

UNREACHED = {
    "vgpu.placement.kubeshare": FOR_KUBESHARE,
    "vgpu.placement.kubeshare_gemini": FOR_KUBESHARE,
    "vgpu.placement.kubeshare_pool": FOR_KUBESHARE,
    "vgpu.schemes.kubeshare.daemon": FOR_KUBESHARE,
}
"""Modules that no command reaches, and why they stay."""


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for package in PACKAGES for file in (ROOT / package).rglob("*.py")}


def mentioned(module: str) -> Iterator[str]:
    """What a module imports, anywhere in it, or names as ``module:object``; and its packages."""
    parts = module.split(".")
    yield from (".".join(parts[:length]) for length in range(1, len(parts)))
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: a relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.split(":")[0]


@cache
def reached() -> frozenset[str]:
    found: set[str] = set()
    waiting = set(ENTRY_POINTS)
    while waiting:
        module = waiting.pop()
        found.add(module)
        waiting |= MODULES.keys() & set(mentioned(module)) - found
    return frozenset(found)


def test_the_entry_points_are_modules():
    assert MODULES.keys() >= ENTRY_POINTS


def test_every_module_is_reached_by_a_command_or_stays_for_a_reason():
    assert sorted(MODULES.keys() - reached() - UNREACHED.keys()) == []


@pytest.mark.parametrize("module", UNREACHED)
def test_an_exception_is_there_and_is_still_one(module):
    assert module in MODULES
    assert module not in reached()
