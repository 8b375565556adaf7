"""The messages of schedulers in their parts, as kube-scheduler, HAMi and Volcano write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpucli.explain.scheduler_message import HAMI_CODES, PartKind, parsed

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


def parts(message):
    return [(str(part.kind), part.nodes, part.name) for part in parsed(message).parts]


def test_each_reason_of_kube_scheduler_is_a_part_with_its_nodes():
    message = (
        "0/9 nodes are available: 1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu,"
        f" 3 node(s) had untolerated taint {{{CONTROL_PLANE}: }}, 3 Insufficient cpu."
        " preemption: 0/9 nodes are available: 2 No preemption victims found for incoming pod,"
        " 7 Preemption is not helpful for scheduling."
    )
    assert parts(message) == [
        ("check", 1, ""),
        ("resource", 2, "nvidia.com/gpu"),
        ("taint", 3, CONTROL_PLANE),
        ("resource", 3, "cpu"),
    ]
    assert parsed(message).total == 9
    assert "preemption" not in parsed(message).text


def test_the_codes_of_hami_for_the_gpus_of_one_node_are_parts_of_their_own():
    message = (
        "0/4 nodes are available: 2 2/3 CardInsufficientCore, 1/3 CardNotHealth, 2 CardCordoned."
    )
    assert parts(message) == [("shares", 2, ""), ("gpus", 2, ""), ("gpus", 2, "")]


@given(st.sampled_from(sorted(HAMI_CODES)), st.integers(1, 99), st.integers(1, 99))
def test_every_code_of_hami_is_known(code, nodes, gpus):
    for text in (code, f"{gpus}/{gpus} {code}", f"node(s) {code}"):
        (part,) = parsed(f"0/{nodes} nodes are available: {nodes} {text}.").parts
        assert (part.kind, part.nodes) == (HAMI_CODES[code], nodes)


@pytest.mark.parametrize(
    ("message", "kind", "name"),
    [
        (
            "binding rejected: node a-1 has been locked within 5m0s: node lock contention",
            "lock",
            "a-1",
        ),
        (
            'Post "https://127.0.0.1:443/filter": dial tcp: connect: connection refused',
            "extender",
            "",
        ),
        ("failed filter with extender at URL http://x:1/filter, code 500", "extender", ""),
        (
            "0/1 nodes are available: waiting for resource claim to be allocated. preemption: no.",
            "resource_claim",
            "",
        ),
        ("0/2 nodes are available: 2 cannot allocate all claims.", "resource_claim", ""),
        ("0/1 nodes are available: waiting for scheduling gates: [x].", "gate", ""),
        (
            "pod group is not ready, 3 Pending, 3 minAvailable; Pending: 3 Unschedulable",
            "group",
            "",
        ),
        (
            "queue resource quota insufficient: insufficient volcano.sh/vgpu-memory",
            "queue",
            "",
        ),
        ("0/1 nodes are available: 1 Insufficient GPU Memory in one device.", "shares", ""),
        ("0/1 nodes are available: 1 no GPU has enough free memory.", "shares", ""),
        ("0/1 nodes are available: 1 Too many pods.", "check", ""),
        ("0/1 nodes are available: 1 ResourceQuotaNotFit.", "quota", ""),
        ("0/1 nodes are available: 1 the stars are not aligned.", "unknown", ""),
        ("no room", "unknown", ""),
    ],
)
def test_other_texts_of_schedulers(message, kind, name):
    (part,) = parsed(message).parts
    assert (part.kind, part.name) == (kind, name)


def test_volcano_puts_its_pod_group_in_front_of_the_reason_of_a_task():
    message = (
        "pod group is not ready, 2 Pending, 2 minAvailable; Pending: 2 Unschedulable. Origin reason"
        " is gang-0: 0/2 nodes are unavailable: 1 Insufficient volcano.sh/vgpu-memory, 1 node(s)"
        " resource fit failed."
    )
    assert [kind for kind, _, _ in parts(message)] == ["group", "resource", "unknown"]


@given(st.text(max_size=200))
def test_any_text_is_a_message(text):
    for message in (text, f"0/3 nodes are available: {text}"):
        for part in parsed(message).parts:
            assert part.text
            assert isinstance(part.kind, PartKind)
