"""How full a cluster is when a pod is rejected first: our rule beside each original scheduler's.

    python benchmarks/fragmentation.py [--nodes 20] [--seeds 3] [--systems hami volcano]
    python benchmarks/fragmentation.py --by-rule [--nodes 100] [--seeds 5]

A trace of pods of mixed sizes comes to an empty cluster with 8 GPUs a node; meanwhile every fourth
pod leaves again. Both place the same trace, and each GPU is chosen as its scheduler does:
what differs is the node. Ours is ``vgpu scheduler`` with its defaults behind a real kube-scheduler
with the configuration of the documentation, as root; with ``--by-rule`` it is the best score alone,
without a cluster. Pods come one after another. The originals are always their rule:

- gpushare's extender scores no nodes: kube-scheduler's own score prefers the node with fewest pods;
- gpu-admission takes the node with the least free cores, then the least free memory;
- HAMi's binpack, its default, adds the used parts of shares, cores and memory, before the pod;
- Volcano's plugin without a policy, its default, finds all nodes alike.

Among equal nodes both take one at random. The figure is the part of all GPU memory that pods hold
at the first rejection: the mean over seeds, and the least.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from msgspec import structs  # noqa: E402

from benchmarks.budgets import Budgets  # noqa: E402
from tests.cluster.extending import (  # noqa: E402
    Extender,
    bound,
    condition_message,
    kube_scheduler,
    make_node,
    remove_nodes,
)
from tests.scheduler.scheduler_configs import WEIGHT  # noqa: E402
from tests.support.bed import objects  # noqa: E402
from tests.support.bed.cluster import start_cluster  # noqa: E402
from tests.support.bed.tools import ToolsMissing, ensure  # noqa: E402
from tests.support.bed.workplace import Workplace  # noqa: E402
from tests.support.registers import hami_register, volcano_register  # noqa: E402
from vgpu.model.allocation import Device, Request  # noqa: E402
from vgpu.model.names import PodRef  # noqa: E402
from vgpu.model.units import MIB  # noqa: E402
from vgpu.placement.candidate import CandidateNode, PodDemand, UsedGpu, with_shares  # noqa: E402
from vgpu.placement.dialects import scheduler_schemes  # noqa: E402
from vgpu.placement.result import Placement  # noqa: E402

GPUS, SLOTS, GIB = 8, 10, 1024 * MIB
GPU_BYTES = 16 * GIB
SIZES = ((1, 6), (2, 5), (3, 4), (4, 4), (5, 3), (6, 3), (8, 2), (10, 1), (12, 1), (16, 1))
"""GiB of a GPU, and how frequent."""

MOST_OF_OURS = 1.005
"""Times of our figure that an original's may be: half a percent is chance."""

LEAVES = 0.25
"""Probability that a pod leaves before the next one comes."""

NAME = "ours"
"""The ``schedulerName`` of pods."""

AGAIN_SECONDS = 3
"""Time in which a rejected pod is tried again, as the extender may see a deletion late, in seconds.
"""

FLAGS = {"kube-apiserver": ["--disable-admission-plugins=TaintNodesByCondition,ServiceAccount"]}
"""No controller is there to take taints and to make accounts."""


class State(NamedTuple):
    """A node as a rule sees it."""

    candidate: CandidateNode
    pods: int


def used(gpus):
    return sum(gpu.memory_bytes for gpu in gpus)


def fewest_pods(_, state):
    return -state.pods


def least_free(_, state):
    gpus = state.candidate.gpus
    return -sum(gpu.free_milli for gpu in gpus), -sum(gpu.free_bytes for gpu in gpus)


def used_parts(_, state):
    gpus = state.candidate.gpus
    return (
        sum(gpu.users for gpu in gpus) / (GPUS * SLOTS)
        + sum(gpu.cores_milli for gpu in gpus) / (GPUS * 1000)
        + used(gpus) / (GPUS * GPU_BYTES)
    )


def all_alike(*_):
    return 0


ORIGINALS = {"gpushare": fewest_pods, "gaia": least_free, "hami": used_parts, "volcano": all_alike}


def empty_node(scheme, number):
    named = scheme.row.name in ("volcano", "hami")
    devices = [
        Device(
            uuid=f"GPU-{number}-{index}" if named else "",
            index=index,
            memory_bytes=GPU_BYTES,
            slots=SLOTS if named else None,
        )
        for index in range(GPUS)
    ]
    return State(CandidateNode(f"n{number}", tuple(map(UsedGpu, devices))), 0)


def arrivals(draw):
    """Pods without end: number, GiB, and whether one of the pods leaves before it comes."""
    sizes, weights = zip(*SIZES, strict=True)
    number = 0
    while True:
        yield number, draw.choices(sizes, weights)[0], draw.random() < LEAVES
        number += 1


def demand_of(scheme, number, gib):
    milli = 10 * round(100 * gib / 16)
    request = Request("main", 1, memory_bytes=gib * GIB, cores_milli=milli)
    if not scheme.row.shares_cores:
        request = structs.replace(request, cores_milli=0)
    return PodDemand(PodRef(str(number), "ml", f"pod-{number}"), (request,))


class Cluster:
    """Nodes that one rule fills; what a node answers to a size is kept until it changes."""

    def __init__(self, scheme, rule, nodes, seed):
        self.scheme, self.rule, self.draw = scheme, rule, random.Random(seed)
        self.nodes = [empty_node(scheme, number) for number in range(nodes)]
        self.answers = [{} for _ in range(nodes)]
        self.pods = {}

    def answer(self, place, gib, demand):
        known = self.answers[place]
        if gib not in known:
            state = self.nodes[place]
            result = self.scheme.dialect.choose(demand, state.candidate)
            is_placed = isinstance(result, Placement)
            known[gib] = self.rule(demand, state) if is_placed else None
        return known[gib]

    def set(self, place, gpus, pods):
        self.nodes[place] = State(structs.replace(self.nodes[place].candidate, gpus=gpus), pods)
        self.answers[place] = {}

    def add(self, number, gib):
        """Whether a node takes the pod."""
        demand = demand_of(self.scheme, number, gib)
        scores = [self.answer(place, gib, demand) for place in range(len(self.nodes))]
        best = max((score for score in scores if score is not None), default=None)
        if best is None:
            return False
        place = self.draw.choice([at for at, score in enumerate(scores) if score == best])
        state = self.nodes[place]
        result = self.scheme.dialect.choose(demand, state.candidate)
        self.pods[number] = place, result.allocations
        self.set(place, result.gpus, state.pods + 1)
        return True

    def remove(self, number):
        place, _ = self.pods.pop(number)
        gpus = empty_node(self.scheme, place).candidate.gpus
        here = [allocations for at, allocations in self.pods.values() if at == place]
        shares = [share for each in here for one in each for share in one.shares]
        self.set(place, with_shares(gpus, shares), len(here))

    def in_use(self):
        held = sum(used(state.candidate.gpus) for state in self.nodes)
        return held / (len(self.nodes) * GPUS * GPU_BYTES)


# ---------------------------------------------------------------- behind kube-scheduler


def node_of(system, number):
    """Capacity and annotations of an empty node."""
    uuids = [f"GPU-{number}-{index}" for index in range(GPUS)]
    mib = GPU_BYTES // MIB
    return {
        "gpushare": ({"aliyun.com/gpu-mem": 16 * GPUS, "aliyun.com/gpu-count": GPUS}, {}),
        "gaia": ({"tencent.com/vcuda-core": 100 * GPUS, "tencent.com/vcuda-memory": 64 * GPUS}, {}),
        "volcano": (
            {
                "volcano.sh/vgpu-number": SLOTS * GPUS,
                "volcano.sh/vgpu-memory": mib * GPUS,
                "volcano.sh/vgpu-cores": 100 * GPUS,
            },
            volcano_register(*uuids, split=SLOTS, amount=mib),
        ),
        "hami": ({"nvidia.com/gpu": SLOTS * GPUS}, hami_register(*uuids, split=SLOTS, mib=mib)),
    }[system]


def limits(system, gib):
    """What a pod requests: the same as :func:`demand_of`."""
    cores = round(100 * gib / 16)
    return {
        "gpushare": {"aliyun.com/gpu-mem": gib},
        "gaia": {"tencent.com/vcuda-core": cores, "tencent.com/vcuda-memory": 4 * gib},
        "volcano": {
            "volcano.sh/vgpu-number": 1,
            "volcano.sh/vgpu-memory": 1024 * gib,
            "volcano.sh/vgpu-cores": cores,
        },
        "hami": {
            "nvidia.com/gpu": 1,
            "nvidia.com/gpumem": 1024 * gib,
            "nvidia.com/gpucores": cores,
        },
    }[system]


class RealCluster:
    """Nodes that kube-scheduler fills with our extender; what :class:`Cluster` is for a rule."""

    def __init__(self, cluster, system, nodes):
        self.api, self.client, self.system = cluster, cluster.client, system
        self.nodes = [f"{system}-{number}" for number in range(nodes)]
        self.pods = {}
        for number, name in enumerate(self.nodes):
            make_node(cluster, name, *node_of(system, number))

    def add(self, number, gib):
        """Whether a node takes the pod."""
        asked = limits(self.system, gib)
        pod = objects.pod(f"p{number}", "default", limits=asked, schedulerName=NAME)
        pod = self.client.create(pod)
        self.pods[number] = pod, gib
        self.client.wait_for(pod, is_decided, "is bound or refused")
        until = time.monotonic() + AGAIN_SECONDS
        while not (is_bound := bound(self.client.get(pod))) and time.monotonic() < until:
            time.sleep(0.1)
        return is_bound

    def remove(self, number):
        pod, _ = self.pods.pop(number)
        self.client.delete(pod, grace_seconds=0)

    def in_use(self):
        held = sum(gib for _, gib in list(self.pods.values())[:-1])  # the last one was rejected
        return held * GIB / (len(self.nodes) * GPUS * GPU_BYTES)

    def close(self):
        remove_nodes(self.api, self.nodes)
        for pod, _ in self.pods.values():
            if (left := self.client.find(pod)) is not None:
                self.client.delete(left, grace_seconds=0)


def is_decided(pod):
    return bound(pod) or condition_message(pod)


# ---------------------------------------------------------------- the figures


def first_rejection(cluster, seed):
    """The part of the memory that is in use when a pod is rejected first."""
    draw = random.Random(seed)
    for number, gib, leaves in arrivals(draw):
        if leaves and cluster.pods:
            cluster.remove(draw.choice(sorted(cluster.pods)))
        if not cluster.add(number, gib):
            return cluster.in_use()
    raise AssertionError


@contextmanager
def scheduled():
    """An API server with our extender behind a kube-scheduler, as docs/scheduler.md has it."""
    with (
        Workplace() as workplace,
        tempfile.TemporaryDirectory() as name,
        start_cluster(workplace, ensure(), controllers=False, flags=FLAGS) as cluster,
        Extender(cluster, Path(name)) as extender,
        kube_scheduler(cluster, Path(name), NAME, extender.port, weight=WEIGHT),
    ):
        yield cluster


def of_rule(scheme, rule, nodes, seed):
    return first_rejection(Cluster(scheme, rule, nodes, seed), seed)


def of_cluster(cluster, scheme, nodes, seed):
    with closing(RealCluster(cluster, scheme.row.name, nodes)) as real:
        return first_rejection(real, seed)


def best_score(scheme):
    return lambda demand, state: scheme.dialect.score(demand, state.candidate)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--by-rule", action="store_true", help="ours without a cluster")
    parser.add_argument("--nodes", type=int, help="20, by rule 100")
    parser.add_argument("--seeds", type=int, help="3, by rule 5")
    parser.add_argument("--systems", nargs="+", choices=sorted(ORIGINALS), default=ORIGINALS)
    args = parser.parse_args()
    nodes = args.nodes or (100 if args.by_rule else 20)
    seeds = args.seeds or (5 if args.by_rule else 3)
    budgets = Budgets()
    where = "by rule" if args.by_rule else "ours behind kube-scheduler"
    try:
        with nullcontext() if args.by_rule else scheduled() as cluster:
            print(f"{nodes} nodes with {GPUS} GPUs, {where}:")
            print("memory in use at the first rejection, mean (least)")
            print(f"  {'system':12}{'ours':>18}{'original':>18}")
            for scheme in scheduler_schemes({}):
                if scheme.row.name in args.systems:
                    compare(scheme, cluster, nodes, seeds, budgets)
    except ToolsMissing as missing:
        sys.exit(str(missing))
    sys.exit(budgets.status())


def compare(scheme, cluster, nodes, seeds, budgets):
    """Print the figures of a system; ``cluster`` None is ours by its rule."""
    name = scheme.row.name
    ours = (
        partial(of_rule, scheme, best_score(scheme))
        if cluster is None
        else partial(of_cluster, cluster, scheme)
    )
    of_original = partial(of_rule, scheme, ORIGINALS[name])
    figures = [[run(nodes, seed) for seed in range(seeds)] for run in (ours, of_original)]
    means = [statistics.mean(each) for each in figures]
    cells = [
        f"{100 * mean:.1f} % ({100 * min(each):.1f} %)"
        for mean, each in zip(means, figures, strict=True)
    ]
    print(f"  {name:12}{cells[0]:>18}{cells[1]:>18}", flush=True)
    part = means[1] / means[0]
    print(
        f"    {budgets.hold(f'{name}, original / ours', part, MOST_OF_OURS, 'times')}", flush=True
    )


if __name__ == "__main__":
    main()
