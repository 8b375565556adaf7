"""Reservations of the original schedulers for pods that are not bound: the day of the switch.

HAMi's scheduler, gpu-admission and older Volcanos write them with the node, and bind later. A
reservation counts for five minutes, and its end wakes the pods that it kept waiting.
"""

import pytest
from msgspec import structs

from tests.scheduler.served import NOW, Served
from tests.scheduler.test_promise import NODES
from tests.support.web_helpers import fetch
from vgpu.kube.objects import Container, Pod
from vgpu.model import PodRef
from vgpu.placement.node_view import RESERVED_SECONDS
from vgpu.placement.result import PlacementReason
from vgpu.written_keys import RETRY

OTHER = PlacementReason.OTHER_SCHEDULER
FREE = (["n1"], {})
HELD = ([], {"n1": OTHER})
END = NOW + RESERVED_SECONDS

LIMITS = {
    "hami": lambda gib: {"nvidia.com/gpu": 1, "nvidia.com/gpumem": gib * 1024},
    "gaia": lambda gib: {"tencent.com/vcuda-core": 10, "tencent.com/vcuda-memory": gib * 4},
    "gpushare": lambda gib: {"aliyun.com/gpu-mem": gib},
    "volcano": lambda gib: {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": gib * 1024},
    "older volcano": lambda gib: {"volcano.sh/gpu-memory": gib * 1024},
}
RESERVED = {
    "hami": lambda at, node="n1": {
        "hami.io/vgpu-node": node,
        "hami.io/vgpu-time": str(int(at)),
        "hami.io/vgpu-devices-to-allocate": "GPU-1,NVIDIA,4096,0:;",
        "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,4096,0:;",
    },
    "gaia": lambda at, node="n1": {
        "tencent.com/predicate-node": node,
        "tencent.com/predicate-time": str(int(at) * 10**9),
        "tencent.com/predicate-gpu-idx-0": "1",
        "tencent.com/gpu-assigned": "false",
    },
    "volcano": lambda at, node="n1": {  # up to 1.15
        "volcano.sh/vgpu-node": node,
        "volcano.sh/vgpu-time": str(int(at)),
        "volcano.sh/vgpu-ids-new": "GPU-1,NVIDIA,4096,0:",
        "volcano.sh/devices-to-allocate": "GPU-1,NVIDIA,4096,0:",
    },
    "gpushare": lambda at, _="": {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(int(at) * 10**9),
    },
    "older volcano": lambda at, _="": {
        "volcano.sh/gpu-index": "1",
        "volcano.sh/gpu-assigned": "false",
        "volcano.sh/predicate-time": str(int(at) * 10**9),
    },
}


class Switched(Served):
    """Our scheduler with one node of two GPUs with 16 GiB, on a clock that is set by hand."""

    def __init__(self, system):
        self.now = NOW
        super().__init__(clock=lambda: self.now)
        self.system = system
        self.cache.set_node("n1", NODES[system])

    def waiting(self, name, gib=4, *, at=None, system=None):
        """A pod that waits; at the time ``at`` its system's original has reserved a GPU for it."""
        system = system or self.system
        annotations = {} if at is None else RESERVED[system](at)
        containers = (Container("main", LIMITS[system](gib)),)
        ref = PodRef(f"uid-{name}", "ns", name)
        pod = Pod(ref, containers=containers, phase="Pending", annotations=annotations)
        return self.again(pod)

    def again(self, pod, **changes):
        """The pod is written, and an event shows it."""
        stored = self.api.store(structs.replace(pod, **changes))
        self.show(pod.ref.name, stored)
        return stored

    def asked(self, pod):
        return self.filter(pod, ["n1"])


@pytest.fixture(params=["hami", "gaia", "volcano"])
def switched(request):
    with Switched(request.param) as switched:
        yield switched


def test_a_node_is_refused_with_its_reason_until_the_reservation_expires(switched):
    switched.waiting("theirs", at=NOW)
    ours = switched.waiting("ours")
    assert switched.asked(ours) == HELD
    page = fetch(switched.server.addresses[0], "/explain/ns/ours")[2].decode()
    assert (
        f"node n1: {OTHER.explanation} (GPUs are reserved for pod ns/theirs, which is not bound,"
        " until 1970-01-12T13:51:40Z)" in page
    )
    assert switched.bind(ours.ref, "n1") == OTHER
    switched.now = END - 0.1
    assert switched.asked(ours) == HELD
    switched.now = END
    assert switched.asked(ours) == FREE
    assert switched.bind(ours.ref, "n1") == ""
    assert switched.api.pods["ours"].node == "n1"


def test_the_pod_of_a_reservation_is_placed_itself_and_anew(switched):
    theirs = switched.waiting("theirs", at=NOW)
    assert switched.asked(switched.waiting("ours")) == HELD
    assert switched.asked(theirs) == FREE
    assert switched.bind(theirs.ref, "n1") == ""
    before, after = theirs.annotations, switched.api.pods["theirs"].annotations
    assert before.keys() <= after.keys()
    assert after != before, "another GPU than the original's choice"


def test_a_reservation_ends_when_its_pod_is_bound_or_gone(switched):
    theirs = switched.waiting("theirs", at=NOW)
    ours = switched.waiting("ours", 16)
    assert switched.asked(ours) == HELD
    switched.again(theirs, node="n1")
    assert switched.asked(ours) == FREE, "beside the GPU that it holds"
    switched.waiting("later", at=NOW)
    assert switched.asked(ours) == HELD
    switched.changed()
    switched.show("later", None)
    assert switched.asked(ours) == FREE
    assert switched.changed() == ["n1"]


def test_a_reservation_is_never_longer_than_five_minutes_from_its_first_sight(switched):
    """Any user may write its time, and write it anew."""
    ours = switched.waiting("ours")
    theirs = switched.waiting("theirs", at=NOW + 10_000)
    switched.now = END - 1
    assert switched.asked(ours) == HELD
    theirs = switched.again(theirs, annotations=RESERVED[switched.system](switched.now))
    assert switched.asked(ours) == HELD
    switched.now = END
    assert switched.asked(ours) == FREE
    switched.again(theirs, annotations=RESERVED[switched.system](switched.now))
    assert switched.asked(ours) == FREE


def test_an_old_reservation_holds_nothing(switched):
    switched.waiting("theirs", at=NOW - RESERVED_SECONDS)
    assert switched.asked(switched.waiting("ours")) == FREE


def test_when_a_reservation_expires_the_pods_that_fit_now_are_woken(switched):
    """No event shows it, and kube-scheduler does not know it."""
    switched.waiting("theirs", at=NOW)
    switched.waiting("another", at=NOW + 10_000)
    small, large = switched.waiting("small"), switched.waiting("large", 17)
    assert switched.asked(small) == switched.asked(large) == HELD
    switched.changed()
    switched.now = END - 1
    switched.settle()
    assert switched.changed() == []
    switched.now = END
    switched.settle()
    assert switched.wake() == 1
    assert RETRY in switched.api.pods["small"].annotations
    assert RETRY not in switched.api.pods["large"].annotations
    assert switched.asked(large) == ([], {"n1": PlacementReason.MEMORY})
    assert switched.asked(small) == FREE


def test_a_node_whose_reservation_has_expired_is_reported_once(switched):
    theirs = switched.waiting("theirs", at=NOW)
    switched.changed()
    switched.now = END
    for expected in (["n1"], []):
        switched.settle()
        assert switched.changed() == expected
    switched.again(theirs, annotations=RESERVED[switched.system](NOW))
    switched.settle()
    assert switched.changed() == []


@pytest.mark.parametrize(
    ("system", "original"), [("gpushare", "gpushare"), ("volcano", "older volcano")]
)
def test_a_reservation_that_names_no_node_holds_nothing(system, original):
    with Switched(system) as switched:
        theirs = switched.waiting("theirs", at=NOW, system=original)
        assert switched.asked(switched.waiting("ours")) == FREE
        if system == original:
            assert switched.bind(theirs.ref, "n1") == ""
            assert switched.api.pods["theirs"].annotations["ALIYUN_COM_GPU_MEM_IDX"] == "0"
