"""Nothing in the product is there that no command reaches."""

import ast
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import product
from tests.support.environment import ROOT
from vgpu.program.own_packages import PACKAGES
from vgpucli.main import COMMANDS

ENTRY_POINTS = frozenset(
    {"vgpucli.main", "vgpu.__main__", *(target.split(":")[0] for target, _ in COMMANDS.values())}
)


class Kept(NamedTuple):
    """Why a function stays that no module of the product names, and when this was decided."""

    reason: str
    since: str


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for file in product.files(PACKAGES)}


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Every module of the product."""
    return {module: product.tree(file) for module, file in MODULES.items()}


def mentioned(module: str) -> Iterator[str]:
    """What a module imports, anywhere in it, or names as ``module:object``; and its packages."""
    parts = module.split(".")
    yield from (".".join(parts[:length]) for length in range(1, len(parts)))
    for node in product.nodes(MODULES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: a relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.split(":")[0]


def reached() -> set[str]:
    found: set[str] = set()
    waiting = set(ENTRY_POINTS)
    while waiting:
        module = waiting.pop()
        found.add(module)
        waiting |= MODULES.keys() & set(mentioned(module)) - found
    return found


def test_the_entry_points_are_modules():
    assert MODULES.keys() >= ENTRY_POINTS


def test_every_module_is_reached_by_a_command():
    assert sorted(MODULES.keys() - reached()) == []


FOR_TESTS = Kept("a fault of the simulated node, which tests cause", "2026-11-23")

UNUSED = {
    "simulator.node:SimulatedDriver.hang": FOR_TESTS,
    "simulator.node:SimulatedDriver.lose": FOR_TESTS,
    "vgpu.program.written_keys:program_keys": Kept(
        "the chart's admission policy, which deploy.generate makes of it", "2026-11-28"
    ),
}
"""Public functions that no module of the product names."""

CALLED_BY_LIBRARIES = {
    "list_commands": Kept("click", "2026-11-23"),
    "get_command": Kept("click", "2026-11-23"),
    "format_commands": Kept("click", "2026-11-23"),
    "log_message": Kept("http.server", "2026-11-23"),
    "sendall": Kept("http.client", "2026-11-28"),
    "communicate": Kept("kubernetes", "2026-11-28"),
}
"""Methods that a library calls, which is the reason."""


def public_functions(trees: dict[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """The public functions and methods of reached modules, without those that are registered."""
    for module, tree in trees.items():
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        for prefix, body in [("", tree.body), *((f"{node.name}.", node.body) for node in classes)]:
            for node in body:
                if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                    continue
                if not any(isinstance(mark, ast.Call) for mark in node.decorator_list):
                    yield f"{module}:{prefix}{node.name}", node.name


def names_in_use() -> set[str]:
    """Every name that the product reads, as a name, an attribute or an entry point."""
    names = {target.split(":")[-1] for target, _ in COMMANDS.values()}
    for module, file in MODULES.items():
        for node in product.nodes(file):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    names.add(name)
                case ast.Constant(value=str() as text) if "_pb2" not in module:
                    names.update(text.replace(":", ".").split(".")[-1:])
    return names


def test_every_function_is_used_by_the_product_or_stays_for_a_reason(trees):
    used = names_in_use()
    unused = {
        place
        for place, name in public_functions(trees)
        if name not in used and name not in CALLED_BY_LIBRARIES and "_pb2" not in place
    }
    assert unused == UNUSED.keys()


def test_every_exception_has_a_reason_and_the_date_of_its_decision():
    for kept in (*UNUSED.values(), *CALLED_BY_LIBRARIES.values()):
        assert kept.reason
        assert date.fromisoformat(kept.since).isoformat() == kept.since


def test_every_method_of_a_library_is_there(trees):
    names = {name for _, name in public_functions(trees)}
    assert names >= CALLED_BY_LIBRARIES.keys()
