"""The placement policies, from the flags of the command to scores and GPUs, over HTTP."""

import pytest
from msgspec import structs

from scheduler.flags import SchedulerOptions
from scheduler.main import command
from tests.scheduler.served import Served
from tests.scheduler.test_differential import limits, new_pod
from tests.scheduler.test_promise import NODES, SCHEMES
from vgpu.model.allocation import RequestDefaults
from vgpu.placement.dialects import PlacementPolicies

NAMES = ("idle", "used")

PIN = {"hami": "nvidia.com/use-gpuuuid", "volcano": "volcano.sh/vgpu-use-gpuuuid"}
"""The annotation with a pod's GPUs; the other systems try GPU 0 first."""

NODE_POLICY = "hami.io/node-scheduler-policy"
GPU_POLICY = "hami.io/gpu-scheduler-policy"


def policies(*flags):
    """The policies of `vgpu scheduler` with these flags."""
    return SchedulerOptions.of(command.make_context("scheduler", list(flags)).params).policies


class Policed(Served):
    """Two nodes of two GPUs; three quarters of a GPU of one node are in use."""

    def __init__(self, system, *flags, gpu=0):
        super().__init__(policies=policies(*flags))
        self.system = system
        for name in NAMES:
            self.cache.set_node(name, structs.replace(NODES[system], name=name))
        pins = {PIN[system]: f"GPU-{gpu}"} if system in PIN else {}
        assert self.placed("first", 3, **pins) == str(gpu)

    def placed(self, name, quarters, **annotations):
        """The index of the GPU that a pod gets on the node in use; an event shows the pod."""
        pod = new_pod(name, limits(self.system, quarters, 1), annotations=annotations)
        assert not self.bind(self.api.store(pod).ref, "used")
        bound = self.api.pods[name]
        self.show(name, bound)
        (codec,) = (each.codec for each in SCHEMES if each.row.name == self.system)
        (share,) = (share for each in codec.claim(bound).allocations for share in each.shares)
        return share.device.removeprefix("GPU-").removeprefix("/dev/nvidia")

    def scored(self, **annotations):
        """The scores of the nodes for a pod that requests a quarter of a GPU."""
        pod = new_pod("scored", limits(self.system, 1, 1), annotations=annotations)
        return self.scores(pod, NAMES)


BINPACK, SPREAD = {"idle": 0, "used": 10}, {"idle": 10, "used": 0}
"""With the pod an eighth of the idle node is in use, and half of the other one."""


@pytest.mark.parametrize("system", sorted(NODES))
@pytest.mark.parametrize(
    ("flags", "scores"),
    [
        ((), BINPACK),
        (("--node-policy", "binpack"), BINPACK),
        (("--node-policy", "spread"), SPREAD),
    ],
)
def test_the_flag_decides_whether_used_or_idle_nodes_score_more(system, flags, scores):
    with Policed(system, *flags) as policed:
        assert policed.scored() == scores


@pytest.mark.parametrize(
    ("policy", "text", "scores"),
    [
        ("binpack", "spread", SPREAD),
        ("spread", "binpack", BINPACK),
        ("spread", "unknown, binpack", BINPACK),
        ("spread", "unknown", SPREAD),
        ("spread", "", SPREAD),
    ],
)
def test_hamis_annotation_of_a_pod_overrides_the_policy_for_nodes(policy, text, scores):
    with Policed("hami", "--node-policy", policy) as policed:
        assert policed.scored(**{NODE_POLICY: text}) == scores


@pytest.mark.parametrize("system", ["gaia", "gpushare", "volcano"])
def test_the_annotation_of_hami_is_for_pods_of_hami_only(system):
    with Policed(system) as policed:
        assert policed.scored(**{NODE_POLICY: "spread"}) == BINPACK


@pytest.mark.parametrize(
    ("system", "policy", "used", "gpu"),
    [
        ("hami", "", 0, "1"),  # HAMi's default is spread
        ("hami", "spread", 1, "0"),
        ("hami", "binpack", 0, "0"),
        ("hami", "binpack", 1, "1"),
        ("volcano", "", 0, "1"),  # Volcano's default is the last GPU, in use or not
        ("volcano", "", 1, "1"),
        ("volcano", "spread", 1, "0"),
        ("volcano", "binpack", 0, "0"),
        ("volcano", "binpack", 1, "1"),
        ("gpushare", "spread", 0, "0"),  # the originals always fill the fullest GPU
        ("gaia", "spread", 0, "0"),
    ],
)
def test_the_flag_decides_which_gpu_a_pod_gets(system, policy, used, gpu):
    flags = ("--gpu-policy", policy) if policy else ()
    with Policed(system, *flags, gpu=used) as policed:
        assert policed.placed("second", 1) == gpu


@pytest.mark.parametrize(
    ("policy", "text", "gpu"),
    [("binpack", "spread", "1"), ("spread", "binpack", "0"), ("binpack", "unknown", "0")],
)
def test_hamis_annotation_of_a_pod_overrides_the_policy_for_gpus(policy, text, gpu):
    with Policed("hami", "--gpu-policy", policy) as policed:
        assert policed.placed("second", 1, **{GPU_POLICY: text}) == gpu


def test_the_policies_are_variables_of_the_environment_as_well(monkeypatch):
    monkeypatch.setenv("VGPU_NODE_POLICY", "spread")
    monkeypatch.setenv("VGPU_GPU_POLICY", "binpack")
    assert policies() == PlacementPolicies("spread", "binpack")
    assert policies("--node-policy", "binpack", "--gpu-policy", "spread") == PlacementPolicies(
        "binpack", "spread"
    )


def test_hamis_defaults_are_flags():
    flags = ("memory", "4000"), ("cores", "30"), ("gpu-num", "2")
    chosen = policies(*(text for name, text in flags for text in (f"--hami.default-{name}", text)))
    assert chosen.hami == RequestDefaults(4000, 30, 2)
    assert policies().hami == RequestDefaults()
