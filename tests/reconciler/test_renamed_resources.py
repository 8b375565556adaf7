"""Resources that an operator has renamed: that a known name is missing is no evidence."""

import json
import os

import pytest

from reconciler.model import Coverage, Scope
from reconciler.plan import make_plan
from reconciler.policy import Ages, Mode, Policy
from reconciler.reasons import Rule
from reconciler.reconciler_state import ReconcilerState
from tests.reconciler.node_samples import on_node, statement
from tests.reconciler.samples import (
    CODECS_IN_USE,
    HOUR,
    gpus,
    handshake,
    node,
    pod,
    replace,
    snapshot,
)
from tests.reconciler.test_cli import planned
from tests.support import sample_cluster as sample
from vgpu.model.names import Source
from vgpu.model.objects import Container
from vgpu.schemes.volcano.codec import HAMI, Volcano
from vgpu.schemes.volcano.row import whole_gpus

ACTS = Policy(
    modes=dict.fromkeys((Rule.RUNNING_WITHOUT_DEVICE, Rule.STALE_HANDSHAKE), Mode.APPLY),
    evict_running=True,
    ages=Ages(drift=0.0, handshake=0.0, clock_skew=0.0),
)
FULL = frozenset({Coverage.PODS, Coverage.NODES, Coverage.SHARE_PODS, Coverage.LEDGER})
GPUMEM = {"nvidia.com/gpumem": 8192}
"""What is left to be read of a request for ``nvidia.com/vgpu`` and ``nvidia.com/gpumem``."""


def plan(seen, policy=ACTS):
    return make_plan(seen, policy, ReconcilerState(), CODECS_IN_USE)[0]


def rules(made):
    return [entry.finding.rule for entry in made.entries]


def test_a_running_container_whose_resource_is_renamed_has_its_device_by_the_kubelet():
    """HAMi's scheduler alone counts memory; the kubelet allocates what has another name."""
    running = pod("train", "hami")
    renamed = replace(running, containers=(Container("main", GPUMEM),))
    assert rules(plan(on_node(node(), running, complete=FULL))) == [Rule.RUNNING_WITHOUT_DEVICE]
    assert plan(on_node(node(), renamed, complete=FULL)).entries == ()


def test_without_annotations_it_is_not_known_to_run_without_a_device_either():
    running = pod("train", "hami", claim=None, phase="Running")
    renamed = replace(running, containers=(Container("main", GPUMEM),))
    assert rules(plan(from_afar(running))) == [Rule.RUNNING_WITHOUT_DEVICE]
    assert plan(from_afar(renamed)).entries == ()


def from_afar(*pods):
    """What the API server alone shows, with the ledger of its annotations."""
    seen = on_node(node(), *pods, known={"read": frozenset({Source.ANNOTATIONS})}, complete=FULL)
    return replace(seen, scope=Scope.CLUSTER)


def test_a_renamed_container_may_still_wait_for_its_device():
    waiting = pod("train", "hami", claim=None, node="")
    renamed = replace(waiting, containers=(Container("main", GPUMEM),), statuses=())
    seen = on_node(node(), renamed, complete=FULL)
    (wanted,) = next(iter(seen.ledgers.values())).waiting
    assert wanted.request.memory_bytes == 8192 << 20


# ---------------------------------------------------------------- beside NVIDIA's own plugin


def hamis(units):
    """A node that HAMi registers, with 2 GPUs of 10 shares each, and this many nvidia.com/gpu."""
    named = node("gpu-1", "hami")
    return replace(named, capacity={"nvidia.com/gpu": units}, allocatable={"nvidia.com/gpu": units})


def whole(name="whole", on="gpu-1", **fields):
    """A pod with a GPU of NVIDIA's own plugin: no annotation names it."""
    running = pod(name, "hami", claim=None, node=on, phase="Running" if on else "Pending")
    return replace(running, containers=(Container("main", {"nvidia.com/gpu": 1}),), **fields)


@pytest.mark.parametrize(("units", "is_nvidias"), [(2, True), (20, False), (0, False)])
def test_whose_a_gpu_is_shows_in_how_many_the_node_advertises(units, is_nvidias):
    """HAMi advertises a GPU as often as it registers it; NVIDIA's plugin has another number."""
    assert whole_gpus([hamis(units)])(whole()) is is_nvidias
    assert whole_gpus([hamis(units)])(whole(on="")) is is_nvidias
    with_memory = replace(whole(), containers=(Container("main", {"nvidia.com/gpu": 1} | GPUMEM),))
    assert not whole_gpus([hamis(units)])(with_memory)


def test_an_unreadable_register_is_no_evidence():
    broken = replace(hamis(2), annotations={HAMI.register: "[nonsense"})
    assert not whole_gpus([broken])(whole())


def test_a_healthy_pod_of_nvidias_plugin_beside_renamed_hami_is_not_evicted(tmp_path):
    register = Volcano(HAMI).register(gpus("gpu-1"))
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "u"}
    healthy = sample.pod(
        "whole", "gpu-1", {"nvidia.com/gpu": 1}, owner=owner | {"controller": True}, age=HOUR
    )
    words = ("--rule", "running_without_device=apply", "--evict-running")

    def rules_of(units):
        file = tmp_path / f"{units}.json"
        at = sample.node("gpu-1", {"nvidia.com/gpu": units}, register)
        file.write_text(json.dumps(sample.dump([at, healthy])))
        os.utime(file, (sample.NOW, sample.NOW))
        document = planned(str(file), *words)
        return [entry["rule"] for entry in (*document["actions"], *document["skipped"])]

    assert rules_of(20) == ["running_without_device"]
    assert rules_of(2) == []


def test_what_nvidias_plugin_offers_does_not_prove_that_hamis_is_alive():
    abandoned = handshake(age=HOUR)
    seen = snapshot(replace(hamis(20), annotations=hamis(20).annotations | abandoned))
    assert rules(plan(seen)) == [Rule.STALE_HANDSHAKE]
    beside = replace(hamis(2), annotations=hamis(2).annotations | abandoned)
    assert plan(snapshot(beside)).entries == ()


def test_a_process_of_a_pod_with_an_unread_grant_is_not_accused():
    """pod-resources report device IDs of a GPU, and no answer that shows the system."""
    running = pod("train", claim=None, phase="Running", containers=(Container("main"),))
    works = statement(running, source=Source.PROCESS)
    policy = replace(ACTS, modes={Rule.UNOWNED_PROCESS: Mode.APPLY})
    known = {"unread_grants": frozenset({running.ref.uid})}
    seen = on_node(node(), running, statements=[works], complete=FULL)
    assert rules(plan(seen, policy)) == [Rule.UNOWNED_PROCESS]
    seen = on_node(node(), running, statements=[works], known=known, complete=FULL)
    assert plan(seen, policy).entries == ()
