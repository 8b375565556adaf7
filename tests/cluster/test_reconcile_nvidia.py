"""Rules for pods of NVIDIA's own plugin on a real API server: reported, and evicted if allowed.

The cluster's rules see the API server's objects. The node's rules see the kubelet's checkpoint with
the replicas' IDs, the driver's processes and their cgroups, too.
"""

import pytest
from msgspec.structs import replace

from reconciler.apply.applier import Applier
from reconciler.apply.audit import Audit
from reconciler.cycle import Cycles
from reconciler.observe.node import NodeObserver
from reconciler.policy import Ages, Mode, Policy
from reconciler.reasons import ActionOutcome, Cause, Rule, SkipReason
from simulator.demo import A10, L40S, make_pod
from simulator.scenario import Process, Scenario
from tests.cluster.reconcile_node import SECOND, NodeOnStage
from tests.cluster.reconciling import (
    AT_ONCE,
    CLUSTER_RIGHTS,
    Command,
    forget_state,
    is_evicted,
    staged,
    with_rights,
)
from tests.reconciler import samples
from vgpu.apiserver.client import ApiClient
from vgpu.inventory import Units
from vgpu.model.allocation import Share
from vgpu.model.objects import Container
from vgpu.model.units import GIB
from vgpu.schemes.nvidia.grant import NVIDIA
from vgpu.sources.node_sources import NodePaths

NODE = "gpu-nvidia-1"
HOUR = 3600.0


@pytest.fixture
def stage(api):
    with staged(api.client) as stage:
        yield stage
    forget_state(api.client)


@pytest.fixture(scope="module")
def account(api):
    return with_rights(api, *CLUSTER_RIGHTS)


# ---------------------------------------------------------------- by the API server


def nvidias(name, namespace, resource):
    container = Container("main", {resource: 1})
    made = samples.pod(name, claim=None, node=NODE, namespace=namespace, containers=(container,))
    return replace(made, owner=samples.owner(name=name))


@pytest.mark.parametrize(
    "resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"]
)
def test_the_refused_pod_is_tidied_and_the_others_are_reported(
    api, stage, account, api_namespace, tmp_path, resource
):
    stage.put(samples.node(NODE, "kubeshare"))
    refused = stage.put(samples.refused(nvidias("refused", api_namespace, resource)))
    stuck = nvidias("stuck", api_namespace, resource)
    stage.put(replace(stuck, phase="Running", deleted_at=1.0))
    broken = samples.waiting(nvidias("broken", api_namespace, resource), "ImagePullBackOff")
    broken = stage.put(broken)
    ages = AT_ONCE["ages"] | {"terminating": "0s", "held": "0s"}
    command = Command(account, tmp_path, AT_ONCE | {"ages": ages})
    ran = command.apply(f"--namespace={api_namespace}")
    assert [(one["name"], one["rule"], one["outcome"]) for one in ran.actions] == [
        ("refused", "refused", "done")
    ]
    reported = {one["rule"]: one for one in ran.findings}
    assert reported["held_for_nothing"]["name"] == "broken"
    assert f"holds 1 of {resource}" in reported["held_for_nothing"]["evidence"]
    assert reported["stuck_terminating"]["name"] == "stuck"
    assert is_evicted(api.client, refused)
    assert not is_evicted(api.client, broken)


# ---------------------------------------------------------------- by the node


def time_sliced():
    """Of three replicas one works, one strays, and one is idle: a fourth pod would have to wait."""

    def shared(name, pid, gpu):
        uses = (Process(pid=pid, gpu=gpu),) if pid else ()
        path, owner = f"ml/{name}-0/main", f"ReplicaSet/{name}"
        return make_pod(path, NVIDIA, (Share(A10.uuid),), uses, owner=owner, created=-3 * HOUR)

    pods = (shared("works", 4001, 0), shared("strays", 4002, 1), shared("idles", 0, 0))
    return Scenario(NODE, (A10, L40S), pods)


@pytest.fixture
def node(stage, api_namespace, tmp_path):
    return NodeOnStage(stage, api_namespace, tmp_path, time_sliced(), registers=False, units=3)


@pytest.fixture
def cycles(node, account, tmp_path):
    """Makes cycles on the node, with its driver; they act with the cluster's rights."""
    places = NodePaths(
        **{
            name: getattr(node.sim.paths, name)
            for name in NodePaths.__struct_fields__
            if hasattr(node.sim.paths, name)
        }
    )
    with (
        ApiClient.connect(str(account.kubeconfig)) as cluster,
        Audit.open(str(tmp_path / "audit.jsonl")) as audit,
    ):
        driver = node.sim.driver(lambda: SECOND)
        observer = NodeObserver(
            cluster, node.name, places, Units(1024, GIB), driver=driver, timeout=30.0
        )
        yield lambda policy: Cycles(observer, policy, apply=Applier(cluster, audit).apply)
        observer.close()


def policy(**fields):
    ages = Ages(*[0.0] * len(Ages.__struct_fields__))
    modes = {Rule.UNOWNED_PROCESS: Mode.APPLY}
    return Policy(modes=modes, ages=replace(ages, idle=HOUR), **fields)


def test_a_stray_process_and_an_idle_replica_are_found_on_the_node(api, node, cycles):
    kept = cycles(policy())
    made = kept.make()
    entries = {entry.finding.object_ref.name: entry for entry in made.plan.entries}
    strays, idles = entries["strays-0"], entries["idles-0"]
    assert strays.finding.rule is Rule.UNOWNED_PROCESS
    assert (strays.skip, strays.detail) == (
        SkipReason.SCHEME_MODE_PLAN, "act_on_schemes: [nvidia]",
    )  # fmt: skip
    assert (idles.finding.rule, idles.finding.cause) == (Rule.IDLE_HOLDER, Cause.NO_PROCESS)
    assert idles.finding.action is None
    assert "works-0" not in entries
    assert [*kept.apply(made)] == []
    assert not any(is_evicted(api.client, pod) for pod in node.pods.values())

    allowed = cycles(policy(act_on_schemes=("nvidia",)))
    made = allowed.make()
    assert [result.outcome for result in allowed.apply(made)] == [ActionOutcome.DONE]
    gone = [name for name, pod in node.pods.items() if is_evicted(api.client, pod)]
    assert gone == ["strays-0"]
