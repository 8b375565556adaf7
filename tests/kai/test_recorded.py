"""What a real KAI Scheduler wrote: shares, conflicts and plans at the end of each step."""

import json
from functools import cache

import pytest

from reconciler.observe.dump import DumpObserver
from reconciler.plan import make_plan
from reconciler.reconciler_state import ReconcilerState
from tests.kai.test_healthy_nodes import ALL_IN
from tests.support import kai_player
from vgpu.inventory import Objects, Units, inventory, with_resource_claims
from vgpu.kube.dump import decode_dump
from vgpu.kube.kai_kinds import BIND_REQUESTS
from vgpu.model.names import Phase
from vgpu.model.units import MIB
from vgpu.schemes.kai.groups import is_reservation

KINDS = ("Node", "Pod", "Namespace", "ConfigMap", "BindRequest")
STEPS = [
    (record, step)
    for record in (kai_player.STORY, kai_player.RACE, kai_player.HAMICORE)
    for step in kai_player.steps(record)
]
DEAD = ["reservation_ended"]
CONFLICTS = {
    (kai_player.RACE, "the_tenant_is_bound"): ["group_unreserved"],
    (kai_player.HAMICORE, "shares_have_limits"): ["portion_zero"],
    (kai_player.HAMICORE, "a_node_lacks_its_label"): ["portion_zero"],
    (kai_player.STORY, "a_reservation_is_refused_by_the_kubelet"): DEAD,
    (kai_player.STORY, "a_reservation_is_deleted"): ["group_unreserved"],
    (kai_player.STORY, "the_node_reboots_without_its_plugin"): DEAD,
    (kai_player.STORY, "a_new_tenant_is_sent_to_a_dead_reservation"): DEAD,
}
"""By step; no other step has one."""


@cache
def content(record, step):
    """The dump of the objects at the end of a step."""
    objects = kai_player.after(step, record=record)
    items = [each for each in objects if each["kind"] in KINDS]
    return json.dumps({"kind": "List", "apiVersion": "v1", "items": items}).encode()


def seen(record, step):
    """The inventory of that dump, and its pods."""
    dump = decode_dump(content(record, step), also=(BIND_REQUESTS,))
    pods, _ = with_resource_claims(dump.pods)
    objects = Objects(
        dump.nodes,
        pods,
        bind_requests=dump.of(BIND_REQUESTS),
        config_maps=dump.shared_gpu,
        lists_all=dump.lists_all,
    )
    return inventory(objects, Units()), pods


def holdings(whole):
    return [holding for view in whole.nodes for holding in view.ledger.holdings]


@pytest.mark.parametrize(("record", "step"), STEPS)
def test_each_step_has_its_conflicts_and_nothing_is_planned(record, step):
    whole, pods = seen(record, step)
    found = [conflict.kind for view in whole.nodes for conflict in view.ledger.conflicts]
    assert found == CONFLICTS.get((record, step), [])
    reserved = {pod.ref.uid for pod in pods if is_reservation(pod)}
    assert reserved.isdisjoint(holding.pod.uid for holding in holdings(whole))
    snapshot = DumpObserver(content(record, step), "dump.json", Units()).view(2e9).snapshot
    plan = make_plan(snapshot, ALL_IN, ReconcilerState(), ())[0]
    assert plan.actions == ()
    assert [entry.finding.cause for entry in plan.entries] == found


def test_shares_are_those_that_kai_has_made():
    step = "two_fractions_on_two_gpus"
    held = {}
    for holding in holdings(seen(kai_player.STORY, step)[0]):
        held.setdefault(holding.pod.name, set()).add(
            (holding.share.device[-1], holding.share.memory_bytes // MIB, holding.phase)
        )
    assert held == {
        "train-0": {("2", 7650, Phase.ASSIGNED)},
        "infer-0": {("2", 4096, Phase.ASSIGNED)},
        "multi-0": {("1", 3060, Phase.ASSIGNED), ("2", 3060, Phase.ASSIGNED)},
    }
