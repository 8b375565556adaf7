"""A share is promised from the BindRequest on, before the pod has a node or a group."""

import json

import pytest
from click.testing import CliRunner

from tests.support import sample_cluster as sample
from tests.support.kai_pods import LABEL_MIB, NODE, gpu, kai_node, reservation, tenant
from tests.support.sample_cluster import nvidia_node
from vgpu.inventory import Objects, Units, inventory
from vgpu.kube.kai_kinds import BindRequest
from vgpu.ledger.conflict_kinds import ConflictKind
from vgpu.model.names import Phase, Source
from vgpu.model.units import MIB
from vgpucli.main import main

PROMISED = BindRequest("team-a", "waits", "waits", "uid-waits", NODE, ("g",), "0.50", 1)
WAITS = tenant("waits", (), node="")


def holdings(*pods, request=PROMISED, **changes):
    """(GPU, MiB, phase) of each share of the pod that waits."""
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    requests = (BindRequest(**(fields | changes)),)
    objects = Objects((kai_node(),), (*pods, WAITS), bind_requests=requests)
    whole = inventory(objects, Units())
    found = [
        (one.share.device, one.share.memory_bytes // MIB, one.phase)
        for view in whole.nodes
        for one in view.ledger.holdings
        if one.pod.name == "waits"
    ]
    assert len(found) + sum(other.pod.name == "waits" for other in whole.others) >= 1
    return found


def test_a_new_group_is_on_no_known_gpu_and_a_group_of_others_on_theirs():
    assert holdings() == [("", 7650, Phase.ASSUMED)]
    assert holdings(reservation(), tenant()) == [(gpu(1), 7650, Phase.ASSUMED)]
    two = holdings(reservation(), tenant(), groups=("g", "new"), count=2)
    assert max(share[0] for share in two) == gpu(1)


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "Failed"},
        {"pod_uid": "of an earlier pod"},
        {"namespace": "team-b"},
        {"pod": "other"},
        {"node": ""},
        {"groups": ()},
    ],
    ids=str,
)
def test_a_bind_request_that_promises_this_pod_nothing_holds_nothing(changes):
    assert holdings(**changes) == []


def test_a_pod_that_is_bound_holds_what_its_labels_say():
    bound = tenant("waits")
    requests = (BindRequest("team-a", "waits", "waits", "uid-waits", NODE, ("another",)),)
    objects = Objects((kai_node(),), (reservation(), bound), bind_requests=requests)
    (view,) = inventory(objects, Units()).nodes
    (holding,) = view.ledger.holdings
    assert (holding.share.device, holding.source) == (gpu(1), Source.RESERVATION_POD)


def test_a_reservation_pod_whose_first_pod_is_being_bound_is_used():
    objects = Objects((kai_node(),), (reservation(), WAITS))
    for requests, kinds in (((PROMISED,), []), ((), [ConflictKind.RESERVATION_UNUSED])):
        whole = Objects(objects.nodes, objects.pods, bind_requests=requests, lists_all=True)
        (view,) = inventory(whole, Units()).nodes
        assert [conflict.kind for conflict in view.ledger.conflicts] == kinds


def bind_request(**spec):
    return {
        "kind": "BindRequest",
        "apiVersion": "scheduling.run.ai/v1alpha2",
        "metadata": {
            "name": "waits",
            "namespace": "ml",
            "ownerReferences": [{"kind": "Pod", "name": "waits", "uid": "uid-of-ml-waits"}],
        },
        "spec": {
            "podName": "waits",
            "selectedNode": "kai",
            "receivedResourceType": "Fraction",
            "receivedGPU": {"count": 1, "portion": "0.27"},
            "selectedGPUGroups": ["g"],
        }
        | spec,
    }


@pytest.mark.parametrize("groups", [["g"], "g", None, [1]])
def test_a_dump_of_any_bind_request_is_read(tmp_path, groups):
    node = nvidia_node("kai", "nvidia.com/gpu", 2, product="T4", memory=LABEL_MIB)
    waits = sample.pod("waits", "", None, {"gpu-memory": "4096"})
    path = tmp_path / "dump.json"
    items = [node, waits, bind_request(selectedGPUGroups=groups)]
    path.write_text(json.dumps(sample.dump(items)))
    printed = CliRunner().invoke(main, ["inspect", "--from", str(path), "-o", "json"])
    assert printed.exit_code == 0
    document = json.loads(printed.stdout)
    shares = [share for one in document["nodes"] for share in one["unplaced"]]
    assert [share["memoryBytes"] for share in shares] == [4096 * MIB] * (groups == ["g"])
    for share in shares:
        sizes = {"roomBytes": 4096 * MIB, "limitBytes": 4147 * MIB, "quotaGpus": 4096 / LABEL_MIB}
        assert share["sizes"] == sizes
    others = [other["pod"]["name"] for other in document["otherSchedulers"]]
    assert others == ([] if groups == ["g"] else ["waits"])
