"""Pods that request devices of other vendors, which HAMi's part of the configuration sends us."""

import pytest
import yaml
from click import Command, Context
from msgspec import structs

from scheduler.flags import placement_policies, policy_flags
from tests.scheduler.scheduler_configs import changed, resource
from tests.scheduler.served import Served
from tests.scheduler.test_check_config import run
from tests.scheduler.test_promise import NODES
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import Container, Pod
from vgpu.placement.dialects import PlacementPolicies
from vgpu.placement.result import PlacementReason
from vgpu.placement.unserved import CHART_RESOURCES, UNSERVED_FLAG

UNSERVED = PlacementReason.UNSERVED_RESOURCE
PLAIN = structs.replace(NODES["hami"], name="plain")

HAMIS = ["nvidia.com/gpu", *(f"nvidia.com/{name}" for name in ("gpumem", "gpucores"))]
HAMIS += ["nvidia.com/gpumem-percentage", "nvidia.com/priority"]
OTHERS = [
    "cambricon.com/vmlu",
    *(f"hygon.com/dcu{name}" for name in ("num", "mem", "cores")),
    *(f"metax-tech.com/{name}" for name in ("gpu", "sgpu", "vcore", "vmemory")),
    "mthreads.com/vgpu",
    *(f"enflame.com/{name}" for name in ("drs-gcu", "gcu-memory", "gcu-core", "gcu")),
    *(f"kunlunxin.com/{name}" for name in ("xpu", "vxpu", "vxpu-memory")),
    *(f"aws.amazon.com/{name}" for name in ("neuron", "neuroncore")),
    "vastaitech.com/va",
    "birentech.com/gpu",
    *(f"amd.com/{name}" for name in ("gpu", "gpumem", "gpucores")),
]
"""The managed resources of HAMi's chart (2.10, ``charts/hami/templates/_helpers.tpl:195``)."""


def a_pod(*containers, name="p"):
    """A pod with a container for each of these requests."""
    return Pod(
        PodRef(f"uid-{name}", "ns", name),
        containers=tuple(
            each if isinstance(each, Container) else Container(f"c{number}", each)
            for number, each in enumerate(containers)
        ),
    )


def a_node(name, resources=(), **annotations):
    """A node that advertises these resources, with annotations in HAMi's domain."""
    named = {f"hami.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    return structs.replace(PLAIN, name=name, annotations=named, others=frozenset(resources))


@pytest.fixture
def served():
    with Served() as served:
        yield served


def asked(served, pod, *nodes):
    for node in nodes:
        served.cache.set_node(node.name, node)
    return served.filter(pod, [node.name for node in nodes])


@pytest.mark.parametrize("other", OTHERS)
def test_a_pod_of_another_vendor_beside_a_gpu_is_refused_by_name(served, other):
    pod = a_pod({"nvidia.com/gpu": 1}, {other: 1})
    nodes = NODES["hami"], a_node("n2", [other])
    names = [node.name for node in nodes]
    assert asked(served, pod, *nodes) == ([], dict.fromkeys(names, UNSERVED))
    assert all(f"container c1 requests {other}" in text for text in served.texts.values())
    assert served.bind(served.api.store(pod).ref, NODES["hami"].name) == UNSERVED
    assert other in served.error
    assert any(other in message for message in served.events())


@pytest.mark.parametrize("system", ["gpushare", "gaia", "volcano"])
def test_it_is_refused_beside_gpus_of_any_system(served, system):
    gpus = {
        "gpushare": {"aliyun.com/gpu-mem": 1},
        "gaia": {"tencent.com/vcuda-core": 10, "tencent.com/vcuda-memory": 1},
        "volcano": {"volcano.sh/vgpu-number": 1},
    }
    pod = a_pod(gpus[system] | {"cambricon.com/vmlu": 1})
    node = NODES[system]
    assert asked(served, pod, node) == ([], {node.name: UNSERVED})


@pytest.mark.parametrize(
    ("other", "register"),
    [
        ("amd.com/gpu", "node_amd_register"),
        ("birentech.com/gpu", "node_biren_register"),
        ("huawei.com/Ascend910B4", "node_register_Ascend910B4"),
        ("hygon.com/dcunum", "node_dcu_register"),
        ("iluvatar.ai/BI-V150-vgpu", "node_BI_V150_register"),
        ("kunlunxin.com/vxpu", "node_register_xpu"),
        ("vastaitech.com/va", "node_va_register"),
    ],
)
def test_where_hami_has_registered_the_vendor_only_hami_chooses(served, other, register):
    """The same pod passes where the vendor's own device plugin serves it."""
    hamis, vendors = a_node("hamis", [other], **{register: "[]"}), a_node("vendors", [other])
    pod = a_pod({other: 1})
    assert asked(served, pod, hamis, vendors) == (["vendors"], {"hamis": UNSERVED})
    assert f"container c0 requests {other}" in served.texts["hamis"]
    assert served.bind(served.api.store(pod).ref, "hamis") == UNSERVED
    assert served.bind(pod.ref, "vendors") == ""


@pytest.mark.parametrize(
    ("other", "register", "whole"),
    [
        ("metax-tech.com/sgpu", "metax-tech.com/node-gpu-devices", "metax-tech.com/gpu"),
        ("enflame.com/drs-gcu", "enflame.com/gcu-drs-capacity", "enflame.com/gcu"),
    ],
)
def test_parts_of_a_vendors_devices_are_hamis_choice_and_whole_ones_are_not(
    served, other, register, whole
):
    node = a_node("n", [other, whole])
    node = structs.replace(node, annotations={register: "{}"})
    assert asked(served, a_pod({other: 1}), node) == ([], {"n": UNSERVED})
    assert asked(served, a_pod({whole: 1}, name="q"), node)[0] == ["n"]


def test_a_node_that_does_not_advertise_what_is_requested_takes_no_such_pod(served):
    """``ignoredByScheduler`` keeps kube-scheduler from checking that."""
    pod = a_pod({}, Container("setup", {"cambricon.com/vmlu": 2}, ContainerKind.INIT))
    nodes = NODES["hami"], a_node("cpu"), a_node("mlu", ["cambricon.com/vmlu"])
    taken, refused = asked(served, pod, *nodes)
    assert (taken, set(refused)) == (["mlu"], {NODES["hami"].name, "cpu"})
    assert served.events() == []


def test_a_pod_that_no_node_takes_has_an_event_and_one_that_requests_0_passes(served):
    assert asked(served, a_pod({"mthreads.com/vgpu": 1}), a_node("cpu"))[0] == []
    (message,) = served.events()
    assert "container c0 requests mthreads.com/vgpu" in message
    assert asked(served, a_pod({"mthreads.com/vgpu": 0}, name="q"), a_node("cpu"))[0] == ["cpu"]
    assert served.filter(a_pod({"mthreads.com/vgpu": 1}, name="r"), ["unknown"])[0] == ["unknown"]


def test_a_pod_is_bound_to_no_node_that_no_event_has_shown(served):
    """kube-scheduler tries again after a refused bind, and by then the event has come."""
    pod = a_pod({"mthreads.com/vgpu": 1})
    assert served.filter(pod, ["new"])[0] == ["new"]
    assert served.bind(served.api.store(pod).ref, "new") == PlacementReason.UNKNOWN_NODE
    served.cache.set_node("new", a_node("new", ["mthreads.com/vgpu"]))
    assert served.bind(pod.ref, "new") == ""
    plain = served.api.store(a_pod({}, name="plain"))
    assert served.bind(plain.ref, "newer") == ""


def test_the_flag_replaces_the_names_of_the_chart():
    policies = PlacementPolicies(unserved=frozenset({"example.com/fpga"}))
    with Served(policies=policies) as served:
        pod = a_pod({"nvidia.com/gpu": 1, "cambricon.com/vmlu": 1})
        assert asked(served, pod, NODES["hami"])[0] == [NODES["hami"].name]
        pod = a_pod({"nvidia.com/gpu": 1, "example.com/fpga": 1}, name="q")
        assert asked(served, pod, NODES["hami"])[0] == []


def with_flags(*args):
    command = Command("x", params=list(policy_flags(lambda: None).__click_params__))
    with command.make_context("x", list(args)) as context:
        assert isinstance(context, Context)
        return placement_policies(context.params)


def test_the_flag_has_names_joined_by_commas():
    assert with_flags().unserved == CHART_RESOURCES
    assert with_flags(UNSERVED_FLAG, "").unserved == frozenset()
    names = "example.com/fpga, amd.com/gpu"
    assert with_flags(UNSERVED_FLAG, names).unserved == {"example.com/fpga", "amd.com/gpu"}


@pytest.mark.parametrize(
    ("names", "problem"),
    [("amd.com/gpu,fpga", "'fpga' is not a resource"), ("nvidia.com/gpumem", "is served")],
)
def test_a_wrong_name_is_refused_by_name(names, problem):
    result = run(UNSERVED_FLAG, names, "check-config", "x")
    assert result.exit_code == 2
    assert problem in result.output


def checked(tmp_path, names):
    file = tmp_path / "config.yaml"
    managed = [each for name in names for each in resource(name, True)]
    file.write_text(yaml.safe_dump(changed(managedResources=managed)))
    return run("check-config", str(file)).output.splitlines()[-1]


def test_check_config_prints_the_flag_for_the_resources_of_other_vendors(tmp_path):
    assert checked(tmp_path, [*HAMIS, *OTHERS]).endswith(
        f"{UNSERVED_FLAG}={','.join(OTHERS)} (the default has them)"
    )
    assert len(OTHERS) == 23
    assert checked(tmp_path, [*HAMIS, "nvidia.com/vgpu"]).endswith(
        f"{UNSERVED_FLAG}=nvidia.com/vgpu"
    )
    assert UNSERVED_FLAG not in checked(tmp_path, HAMIS)
