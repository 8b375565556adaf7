"""Budgets: maximum costs of a benchmark, which reports each and exits with 1 if one is exceeded.

A budget is compared with the best of several runs: other work of the machine only adds to a run.
"""

import os


def load() -> str:
    """The machine's load average of the last minute, to print beside figures."""
    return f"{os.getloadavg()[0]:.1f}"


class Budgets:
    """The budgets of one benchmark, in the order of their measurements.

    At the end: ``return budgets.status()``.
    """

    def __init__(self) -> None:
        self._broken: list[str] = []

    def hold(self, what: str, best: float, most: float, unit: str) -> str:
        """Whether ``best`` is at most ``most``, in words to print beside it."""
        if best <= most:
            return f"PASS: at most {most:g} {unit} (load {load()})"
        self._broken.append(f"{what}: {best:.4g} {unit}, where {most:g} are allowed")
        return f"FAIL: at most {most:g} {unit} (load {load()})"

    def status(self) -> int:
        """Print the exceeded budgets again; returns the exit status."""
        for line in self._broken:
            print(f"FAIL: {line}")
        return 1 if self._broken else 0
