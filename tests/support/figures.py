"""What a test has measured: printed at the end of the run, whichever worker it ran in.

def test_it(figure):
    figure(f"ready after {seconds:.1f} s")
"""

import pytest

KEY = "figure"


@pytest.fixture
def figure(request):
    """Takes a line for the summary; a figure is never asserted."""
    return lambda line: request.node.user_properties.append((KEY, line))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures by test."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    lines = {
        report.nodeid: [text for key, text in report.user_properties if key == KEY]
        for report in reports
        if report.when == "call"
    }
    if any(lines.values()):
        terminalreporter.section("figures")
    for test, texts in sorted(lines.items()):
        for text in texts:
            terminalreporter.line(f"{test.rpartition('::')[2].partition('@')[0]}: {text}")
