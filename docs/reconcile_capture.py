"""Writes docs/reconcile.svg: what `vgpu reconcile apply` prints of the demo's cluster.

    python docs/reconcile_capture.py

One rule is off, whose finding (a GPU of the demo is overcommitted) has more lines than all others.
"""

import re
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from reconciler.apply.applier import Applier
from reconciler.cycle import Cycles
from reconciler.observe.cluster import ListingObserver
from reconciler.policy import Mode, Policy
from reconciler.reasons import Rule
from reconciler.report.table import show_outcomes, show_plan, show_result
from reconciler.session import NoAudit
from simulator.apiserver import ApiServer
from simulator.cluster import SimulatedCluster
from simulator.demo_cluster import demo_cluster
from vgpu.apiserver.client import ApiClient
from vgpu.inventory import Units
from vgpu.model.units import GIB

PICTURE = Path(__file__).resolve().parent / "reconcile.svg"
COLUMNS = 100
START = 1_790_000_000.0
TITLE = "vgpu reconcile apply --yes --rule double_booked=off"


def print_to(console: Console) -> None:
    """Make the plan and apply it, as the command does."""
    simulated = SimulatedCluster(demo_cluster(START), START)
    with tempfile.TemporaryDirectory() as folder, ApiServer(simulated.store) as api:
        kubeconfig = Path(folder, "kubeconfig")
        kubeconfig.write_text(api.kubeconfig())
        with ApiClient.connect(str(kubeconfig)) as cluster:
            cycles = Cycles(
                ListingObserver(cluster, Units(1024, GIB)),
                Policy(modes={Rule.DOUBLE_BOOKED: Mode.OFF}),
                apply=Applier(cluster, NoAudit()).apply,
                clock=lambda: START,
            )
            made = cycles.make()
            show_plan(console, made.plan)
            results = []
            for result in cycles.apply(made):
                results.append(result)
                show_result(console, result)
            show_outcomes(console, [result.outcome for result in results])


def main() -> None:
    """Print it into a picture."""
    with Path("/dev/null").open("w") as nowhere:
        console = Console(
            file=nowhere, record=True, width=COLUMNS, force_terminal=True, highlight=False
        )
        print_to(console)
        # Fonts from elsewhere would not be loaded inside of a page; any monospaced one will do.
        template = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
        console.save_svg(str(PICTURE), title=TITLE, code_format=template, unique_id="reconcile")


if __name__ == "__main__":
    main()
