"""What did not run, and why: the last lines of `make test`, and its status.

    --not-run-status=3

A run that passes but skips a test ends with that status. What only a real GPU can run is counted
apart and changes no status.
"""

from collections import Counter

import pytest

from deploy.gpu_kit.checks import CHECKS

OPTION = "--not-run-status"
REASON = "Skipped: "
"""What pytest writes before the reason of a skip."""
GPU_LINE = f"Only a GPU can run {len(CHECKS)} more checks: make test-gpu"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        OPTION, type=int, help="list at the end what did not run; status if it is all that is wrong"
    )


def reasons(reporter: pytest.TerminalReporter) -> Counter[str]:
    """Reason -> the number of tests that were skipped for it; a skipped file counts as one."""
    return Counter(
        report.longrepr[2].removeprefix(REASON) for report in reporter.getreports("skipped")
    )


def reporter_of(config: pytest.Config) -> pytest.TerminalReporter | None:
    """Prints what this process reports; a worker of xdist reports nothing itself."""
    wanted = config.getoption(OPTION) is not None and not hasattr(config, "workerinput")
    return config.pluginmanager.get_plugin("terminalreporter") if wanted else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = reporter_of(session.config)
    if reporter and exitstatus == pytest.ExitCode.OK and reasons(reporter):
        session.exitstatus = session.config.getoption(OPTION)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Print the list below everything else."""
    if not (reporter := reporter_of(config)):
        return
    counts = reasons(reporter)
    if counts:
        total = counts.total()
        status = config.getoption(OPTION)
        unless = " unless SKIP_MISSING=1" if status else ""
        reporter.line(f"Not run: {total} test{'s' * (total > 1)}, status {status}{unless}")
    for reason, number in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        reporter.line(f"{number:6} {reason}")
    reporter.line(GPU_LINE)
