"""The first text of the demo: no line is longer than a terminal."""

from types import SimpleNamespace

import pytest

from exporter.problems import COLLECTORS, Problem, ProblemSeverity
from vgpucli.demo import command as demo

PAGE = SimpleNamespace(
    exposition=SimpleNamespace(series=1),
    view=SimpleNamespace(usage=SimpleNamespace(shares=()), tokens=()),
)
"""A page without containers."""


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_long_problem_is_wrapped(monkeypatch, columns):
    long = Problem(ProblemSeverity.WARNING, "words " * 120, COLLECTORS)
    monkeypatch.setattr(demo, "problems", lambda _: [long])
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = demo.first_summary("http://localhost:1", PAGE).splitlines()
    assert max(map(len, lines[lines.index("  Problems on this node:") :])) <= max(
        60, min(columns, 100)
    )
