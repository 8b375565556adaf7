"""The gauges of the original schedulers, with the numbers by which our scheduler decides."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse

from scheduler.cache.scheduler_cache import SchedulerCache
from scheduler.compat.gauges import SETS, SchedulerCompat
from scheduler.compat.rows import PodHoldings, SchemeHoldings
from tests.grafana.pretended_scheduler import view_of
from tests.scheduler.served import Served
from tests.support.registers import HAMI, hami_gpu
from vgpu.kube.kinds import NODES, PODS
from vgpu.metrics.render import Format, Renderer
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject
from vgpu.model.units import MIB
from vgpu.placement.dialects import scheduler_schemes

L40S = "GPU-1,10,4914,NVIDIA-L40S,true,hami-core:"
"""The published example: 49140 MiB in units of 10 MiB."""

NODES_OF = {
    "volcano": {"volcano.sh/node-vgpu-register": L40S},
    "hami": {HAMI: json.dumps([hami_gpu(f"GPU-{number}", number) for number in (1, 2)])},
}
ASKED = {
    "volcano": {"volcano.sh/vgpu-number": "1"},
    "hami": {"nvidia.com/gpu": "1"},
}


def a_node(system):
    meta = {"name": "node-1", "uid": "n1", "annotations": NODES_OF[system]}
    status = {"capacity": dict.fromkeys(ASKED[system], "10")}
    return NODES.one(json.dumps({"metadata": meta, "status": status}).encode())


def a_pod(system, name, devices, namespace="ml", containers=("main",), init=(), node="node-1"):
    """A bound pod of which the containers hold these devices, as the original writes them."""
    prefix = "volcano.sh/vgpu-ids-new" if system == "volcano" else "hami.io/vgpu-devices-allocated"
    annotations = {prefix: devices} if devices else {}

    def spec(names):
        limits = {"limits": ASKED[system]}
        return [{"name": each, "image": "x", "resources": limits} for each in names]

    return PODS.one(
        json.dumps(
            {
                "metadata": {
                    "name": name,
                    "namespace": namespace,
                    "uid": f"{namespace}-{name}",
                    "resourceVersion": "1",
                    "annotations": annotations,
                },
                "spec": {
                    "nodeName": node,
                    "containers": spec(containers),
                    "initContainers": spec(init),
                },
                "status": {"phase": "Running" if node else "Pending"},
            }
        ).encode()
    )


class Scheduling:
    """A cache with one node of a sharing system."""

    def __init__(self, system, cache=None):
        self.system = system
        self.cache = cache or SchedulerCache(scheduler_schemes({"volcano": 10 * MIB}), lambda: 0.0)
        schemes = self.cache.schemes
        self.scheme = next(scheme for scheme in schemes if scheme.row.name == system)
        self.cache.set_node("node-1", a_node(system))
        self.holdings = PodHoldings()

    def add(self, *args, **spec):
        pod = a_pod(self.system, *args, **spec)
        self.cache.set_pod(f"{pod.ref.namespace}/{pod.ref.name}", pod)
        return pod

    def page(self, compat):
        """(name, labels) -> value of all series."""
        held = self.holdings.of(self.scheme, self.cache.inspected(self.system))
        view = view_of(0.0, held=SchemeHoldings(**{self.system: held}))
        text = Renderer(SETS[compat]()).render(view).body(Format.TEXT).decode()
        families = list(parse(text))
        assert {family.type for family in families} <= {"gauge"}
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }


def series(name, value, **labels):
    return {(name, *sorted(labels.items())): value}


def test_the_published_example_of_volcano_has_640_where_the_original_had_2048():
    bed = Scheduling("volcano")
    for number in range(5):
        bed.add(f"pod-{number}", "GPU-1,NVIDIA,128,10:")
    gpu = {"devID": "GPU-1", "NodeName": "node-1"}
    prefix = "volcano_vgpu_device_"
    expected = {
        **series(f"{prefix}shared_number", 5, **gpu),
        **series(f"{prefix}allocated_memory", 640, **gpu),
        **series(f"{prefix}allocated_cores", 50, **gpu),
        **series(f"{prefix}memory_limit", 4914, **gpu),
    }
    for number in range(5):
        pod = {**gpu, "podName": f"pod-{number}"}
        expected |= series(f"{prefix}memory_allocation_for_a_certain_pod", 128, **pod)
        expected |= series(f"{prefix}core_allocation_for_a_certain_pod", 10, **pod)
    assert bed.page(SchedulerCompat.VOLCANO) == expected


def test_pods_of_one_name_in_two_namespaces_are_one_series_with_their_sum():
    bed = Scheduling("volcano")
    for namespace in ("a", "b"):
        bed.add("web", "GPU-1,NVIDIA,128,10:", namespace=namespace)
    name = "volcano_vgpu_device_memory_allocation_for_a_certain_pod"
    labels = {"devID": "GPU-1", "NodeName": "node-1", "podName": "web"}
    assert series(name, 256, **labels).items() <= bed.page(SchedulerCompat.VOLCANO).items()


def test_a_node_that_has_gone_has_no_series():
    bed = Scheduling("volcano")
    bed.add("web", "GPU-1,NVIDIA,128,10:")
    bed.cache.set_node("node-1", None)
    assert bed.page(SchedulerCompat.VOLCANO) == {}


@pytest.mark.parametrize("compat", SETS)
def test_a_node_with_a_pod_that_cannot_be_read_has_no_series(compat):
    """Nobody knows what is in use of its GPUs."""
    bed = Scheduling(compat.system)
    bed.add("web", "GPU-1,NVIDIA,128,10:" if compat.system == "volcano" else "")
    assert bed.page(compat)
    broken = MalformedObject("Pod", PodRef("uid-a", "ml", "a"), "spec: wrong", "node-1")
    bed.cache.set_malformed("ml/a", broken)
    assert bed.page(compat) == {}


HAMI_PAGE = {
    SchedulerCompat.HAMI: (
        ("node", "device_uuid", "device_index", "device_type"),
        {
            "hami_gpu_memory_limit_bytes": (16384 * MIB, 16384 * MIB),
            "hami_gpu_core_limit_ratio": (100, 100),
            "hami_gpu_shared_count": (2, 0),
            "hami_gpu_core_allocated_ratio": (40, 0),
            "hami_node_gpu_memory_allocated_ratio": (0.375, 0),
        },
        ("hami_gpu_memory_allocated_bytes", "device_cores"),
        ("hami_node_gpu_overview", "device_memory_limit"),
        ("namespace", "node", "pod", "container_index", "device_uuid"),
        ("hami_vgpu_memory_allocated_bytes", "hami_vgpu_core_allocated_ratio"),
    ),
    SchedulerCompat.HAMI_LEGACY: (
        ("nodeid", "deviceuuid", "deviceidx", "devicetype"),
        {
            "GPUDeviceMemoryLimit": (16384 * MIB, 16384 * MIB),
            "GPUDeviceCoreLimit": (100, 100),
            "GPUDeviceSharedNum": (2, 0),
            "GPUDeviceCoreAllocated": (40, 0),
            "nodeGPUMemoryPercentage": (0.375, 0),
        },
        ("GPUDeviceMemoryAllocated", "devicecores"),
        ("nodeGPUOverview", "devicememorylimit"),
        ("podnamespace", "nodename", "podname", "containeridx", "deviceuuid"),
        ("vGPUMemoryAllocated", "vGPUCoreAllocated"),
    ),
}
"""Labels of a GPU; its gauges with the values of both GPUs; the others with their further label."""


@pytest.mark.parametrize("compat", HAMI_PAGE)
def test_hamis_gauges_have_their_names_labels_and_units(compat):
    labels, of_gpus, (memory, cores), (overview, size), of_shares, shares = HAMI_PAGE[compat]
    bed = Scheduling("hami")
    bed.add("two", "GPU-1,NVIDIA,4096,30:;GPU-1,NVIDIA,2048,10:;", containers=("a", "b"))
    expected = {}
    for number in (1, 2):
        values = ("node-1", f"GPU-{number}", str(number), "NVIDIA-Tesla T4")
        gpu = {"zone": "vGPU", **dict(zip(labels, values, strict=True))}
        for name, both in of_gpus.items():
            lacks = {"devicetype"} if name == "nodeGPUMemoryPercentage" else set()
            has = {label: text for label, text in gpu.items() if label not in lacks}
            expected |= series(name, both[number - 1], **has)
        used = 6144 * MIB if number == 1 else 0
        gpu[cores] = "100"
        expected |= series(memory, used, **gpu)
        expected |= series(overview, used, **gpu, **{size: "16384"})
    for number, (size_mib, percent) in enumerate(((4096, 30), (2048, 10))):
        values = ("ml", "node-1", "two", str(number), "GPU-1")
        share = {"zone": "vGPU", **dict(zip(of_shares, values, strict=True))}
        expected |= series(shares[0], size_mib * MIB, **share)
        expected |= series(shares[1], percent, **share)
    assert bed.page(compat) == expected


def test_an_init_container_counts_at_the_peak_and_is_numbered_before_the_others():
    bed = Scheduling("hami")
    bed.add("web", "GPU-1,NVIDIA,8192,50:;GPU-1,NVIDIA,4096,30:;", init=("fetch",))
    page = bed.page(SchedulerCompat.HAMI)
    gpu = {
        "zone": "vGPU",
        "node": "node-1",
        "device_uuid": "GPU-1",
        "device_index": "1",
        "device_type": "NVIDIA-Tesla T4",
    }
    share = {"namespace": "ml", "node": "node-1", "pod": "web", "device_uuid": "GPU-1"}
    for number, mib in (("0", 8192), ("1", 4096)):
        name = "hami_vgpu_memory_allocated_bytes"
        labels = {**share, "container_index": number, "zone": "vGPU"}
        assert series(name, mib * MIB, **labels).items() <= page.items()
    assert series("hami_gpu_core_allocated_ratio", 50, **gpu).items() <= page.items()


def test_what_is_reserved_counts_before_the_pod_is_bound():
    with Served() as served:
        bed = Scheduling("hami", served.cache)
        waiting = served.api.store(a_pod("hami", "new", "", node=""))
        served.show("new", waiting)
        assert not served.bind(waiting.ref, "node-1")
        page = bed.page(SchedulerCompat.HAMI)
    shared = [value for (name, *_), value in page.items() if name == "hami_gpu_shared_count"]
    assert sorted(shared) == [0, 1]


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 2), st.integers(1, 1500), st.integers(0, 10)), max_size=10)
)
def test_the_pods_of_a_gpu_add_up_to_what_is_allocated_of_it(shares):
    """Of HAMi's set, whatever comes and goes; what is known of a pod is never an old state's."""
    bed = Scheduling("hami")
    for number, (gpu, size, cores) in enumerate(shares):
        bed.add(f"pod-{number % 4}", f"GPU-{gpu},NVIDIA,{size},{cores}:;")
        page = bed.page(SchedulerCompat.HAMI)
        of_gpus, of_pods = {}, {}
        for (name, *labels), value in page.items():
            at = dict(labels).get("device_uuid")
            if name == "hami_gpu_memory_allocated_bytes":
                of_gpus[at] = value
            if name == "hami_vgpu_memory_allocated_bytes":
                of_pods[at] = of_pods.get(at, 0) + value
        assert {"GPU-1": 0, "GPU-2": 0} | of_pods == of_gpus
