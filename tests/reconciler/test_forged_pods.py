"""Whatever pods a tenant creates: no rule at apply evicts or changes a pod of another tenant."""

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from reconciler.model import ObjectKind
from reconciler.reasons import Rule
from tests.reconciler.node_samples import on_node, statement
from tests.reconciler.samples import (
    CODECS,
    HOUR,
    claimed,
    ended,
    node,
    owner,
    pod,
    refused,
    replace,
    snapshot,
    terminating,
    with_ledgers,
)
from tests.reconciler.test_hostile import plan_of
from vgpu.model.names import Phase
from vgpu.model.objects import MIRROR

TENANT = "evil"

STATES = {
    "as it is": lambda each: each,
    "refused": refused,
    "ended": ended,
    "terminating": terminating,
}


def victims(style):
    """Pods of other tenants that have all of a GPU, and run."""
    return [
        pod(f"victim-{number}", style, owner=owner(name=f"victim-{number}")) for number in range(5)
    ]


@st.composite
def forged(draw, style, others):
    """A pod with everything that who creates it can write: a claim, marks and owners of others."""
    victim = draw(st.sampled_from(others))
    made = pod(
        f"forged-{draw(st.integers(0, 99))}",
        style,
        node=draw(st.sampled_from(["gpu-1", ""])),
        gpu=draw(st.integers(0, 1)),
        claim=draw(st.sampled_from([Phase.ASSIGNED, Phase.ASSUMED, None])),
        namespace=TENANT,
        age=draw(st.sampled_from([99 * HOUR, HOUR, 1.0])),
        kind=draw(st.sampled_from(["ReplicaSet", "Job", None])),
    )
    written = dict(made.annotations)
    for text in (
        {MIRROR: victim.ref.uid},
        victim.annotations,
        claimed(draw(st.sampled_from(sorted(CODECS))), victim.ref, "gpu-1"),
    ):
        if draw(st.booleans()):
            written |= text
    if written and draw(st.booleans()):
        written[draw(st.sampled_from(sorted(written)))] = draw(st.sampled_from(["", "x", "-1"]))
    made = replace(made, annotations=written)
    if draw(st.booleans()):
        made = replace(made, owner=victim.owner)
    if draw(st.booleans()):
        made = replace(made, labels=victim.labels)
    return STATES[draw(st.sampled_from([*STATES]))](made)


def touched(plan, pods):
    """The names of these pods that an action is about."""
    uids = {each.ref.uid for each in pods}
    names = {(each.ref.namespace, each.ref.name) for each in pods}
    found = (entry.finding.object_ref for entry in plan.actions)
    return [
        each
        for each in found
        if each.kind is not ObjectKind.NODE
        and (each.uid in uids or (each.namespace, each.name) in names)
    ]


def looks(others, style, more=()):
    """The cluster from afar, and from the node, where the kubelet has the others' devices."""
    pods = [*others, *more]
    yield with_ledgers(snapshot(*pods, node()))
    yield on_node(*pods, node(), statements=[statement(each, style) for each in others])


@pytest.mark.parametrize("style", sorted(CODECS))
def test_nothing_is_done_to_these_pods_by_themselves(style):
    others = victims(style)
    for seen in looks(others, style):
        assert not touched(plan_of(seen, *Rule), others)


@for_all(style=st.sampled_from(sorted(CODECS)), data=st.data())
def test_pods_of_a_tenant_evict_and_change_no_pod_of_another(style, data):
    others = victims(style)
    more = data.draw(st.lists(forged(style, others), min_size=1, max_size=6))
    more = list({each.ref.name: each for each in more}.values())
    for seen in looks(others, style, more):
        assert not touched(plan_of(seen, *Rule), others)
