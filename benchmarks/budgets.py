"""Budgets: what a benchmark may cost. It says of each whether it is kept, and exits with 1 if not.

A budget is held against the best of several runs: what else the machine does only adds to a run.
"""


class Budgets:
    """The budgets of one benchmark, in the order in which they are held against what was measured.

    At the end: ``return budgets.status()``.
    """

    def __init__(self) -> None:
        self._broken: list[str] = []

    def hold(self, what: str, best: float, most: float, unit: str) -> str:
        """Whether ``best`` is at most ``most``, in words to print beside it."""
        if best <= most:
            return f"budget {most:g} {unit}: kept"
        self._broken.append(f"{what}: {best:.4g} {unit}, where {most:g} are allowed")
        return f"budget {most:g} {unit}: PASSED OVER"

    def status(self) -> int:
        """Name what was passed over once more; the status to exit with."""
        for line in self._broken:
            print(f"PASSED OVER: {line}")
        return 1 if self._broken else 0
