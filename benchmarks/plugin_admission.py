"""How fast a real node admits 80 containers on 8 GPUs at once with our device plugin, as root.

    python benchmarks/plugin_admission.py [--rounds 3]

A node of the test bed with a real kubelet and containerd serves two plugins at the same time: ours
over a fake driver, and one that only answers. In turn, 80 pods that ask for one or the other are
created at once. Throughput is of the whole time, from the first creation until the last container
has started; the kubelet's own histograms have the time of its calls of Allocate, for all resources
of a pod together, and the time of a pod's start. The ratio is of the best rounds: other work of the
machine only adds to a round.
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.budgets import Budgets  # noqa: E402
from tests.cluster.admission import CONTAINERS, GPUS, Contest, remove  # noqa: E402
from tests.support.bed.cluster import start_cluster  # noqa: E402
from tests.support.bed.images import bed_images  # noqa: E402
from tests.support.bed.node import Node  # noqa: E402
from tests.support.bed.tools import ToolsMissing, ensure  # noqa: E402
from tests.support.bed.workplace import Workplace  # noqa: E402

MOST_TIMES_AS_LONG = 1 / 0.9


def rounds_of(contest, namespace, count):
    """Both plugins' rounds, in turn, after one round of each that warms up the node."""
    rounds = {"ours": [], "nothing": []}
    for number in range(count + 1):
        turns = {"ours": contest.ours, "nothing": contest.theirs}
        for who in sorted(turns, reverse=number % 2):
            taken = turns[who](namespace)
            remove(contest.client, taken)
            show(who, taken, "  (warm-up)" if number == 0 else "")
            if number:
                rounds[who].append(taken)
    return rounds


def show(who, taken, note=""):
    print(
        f"{who:<8} {taken.seconds:>6.1f} s {taken.throughput:>6.2f} containers a second"
        f" {taken.allocate_ms:>7.1f} ms of Allocate a pod {taken.start_ms:>7.0f} ms to start{note}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    try:
        tools = ensure()
    except ToolsMissing as error:
        sys.exit(str(error))
    print(f"{CONTAINERS} containers at once on {GPUS} GPUs")
    with Workplace() as workplace, tempfile.TemporaryDirectory() as folder:
        images = bed_images(workplace.folder)
        with (
            start_cluster(workplace, tools, name="control-plane", controllers=True) as cluster,
            Node(cluster, images) as node,
            cluster.namespace() as namespace,
            Contest(node, Path(folder)) as contest,
        ):
            found = rounds_of(contest, namespace, args.rounds)
    best = {who: max(taken.throughput for taken in rounds) for who, rounds in found.items()}
    ratio = best["ours"] / best["nothing"]
    budgets = Budgets()
    what = "time of one round, beside a plugin that does nothing"
    held = budgets.hold(what, 1 / ratio, MOST_TIMES_AS_LONG, "times")
    print(f"ours admits {ratio:.2f} of what one that does nothing admits; {held}")
    return budgets.status()


if __name__ == "__main__":
    sys.exit(main())
