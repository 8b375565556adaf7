"""The product's Python files and their syntax trees, which several tests read.

Each file is parsed once in a process; ``TOGETHER`` of tests/support/schedule.py has the tests that
read all of them in one.
"""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tests.support.environment import ROOT


def files(packages: Iterable[str]) -> list[Path]:
    """The files of these packages, package by package."""
    return [file for package in packages for file in sorted((ROOT / package).rglob("*.py"))]


@cache
def tree(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_bytes())


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """All nodes of the tree, each before its children."""
    return tuple(ast.walk(tree(file)))
