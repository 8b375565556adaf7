"""The first text of the demo: no line is longer than a terminal."""

import pytest

from exporter.problems import Problem, ProblemSeverity
from vgpucli.demo import command as demo


class Page:
    """A page without containers."""

    class exposition:  # noqa: N801
        series = 1

    class view:  # noqa: N801
        class usage:  # noqa: N801
            shares = ()

        tokens = ()


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_long_problem_is_wrapped(monkeypatch, columns):
    long = Problem(ProblemSeverity.WARNING, "words " * 120)
    monkeypatch.setattr(demo, "problems", lambda _: [long])
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = demo.first_summary("http://localhost:1", Page).splitlines()
    assert max(map(len, lines[lines.index("  Problems on this node:") :])) <= max(
        60, min(columns, 100)
    )
