"""Budgets: maximum costs of a benchmark, which reports each and exits with 1 if one is exceeded.

A budget is compared with the best of several runs, since other work of the machine only adds to a
run, or with the median where the docstring of the benchmark has it.
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

    def hold(self, what: str, figure: float, most: float, unit: str) -> str:
        """Whether ``figure`` is at most ``most``, in words to print beside it."""
        if figure <= most:
            return f"PASS: at most {most:g} {unit} (load {load()})"
        self._broken.append(f"{what}: {figure:.4g} {unit}, where {most:g} are allowed")
        return f"FAIL: at most {most:g} {unit} (load {load()})"

    def status(self) -> int:
        """Print the exceeded budgets again; returns the exit status."""
        for line in self._broken:
            print(f"FAIL: {line}")
        return 1 if self._broken else 0
