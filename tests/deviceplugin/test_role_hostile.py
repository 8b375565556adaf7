"""Whatever stands in annotations and limits: a role answers, or refuses in its own words."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.reasons import Refused
from deviceplugin.roles.gpushare import GpushareRole
from deviceplugin.roles.volcano import Signs, VolcanoRole
from tests.support.plugin_pods import (
    NODE,
    NOW,
    A,
    B,
    by_name,
    container,
    gpu,
    no_books,
    node,
    pod,
    tenant_of,
)
from vgpu.model import Allocation, Phase, Share
from vgpu.schemes.gpushare import ANNOTATIONS
from vgpu.schemes.volcano import HAMI, VOLCANO, Volcano
from vgpu.units import GIB

ROLES = {
    "volcano": VolcanoRole(Volcano(), signs=Signs.ON),
    "hami": VolcanoRole(Volcano(HAMI), signs=Signs.AUTO),
    "gpushare": GpushareRole(),
}
POD_KEYS = {
    "volcano": (*VOLCANO.claim, "volcano.sh/gpu-index"),
    "hami": HAMI.claim,
    "gpushare": (*ANNOTATIONS, "aliyun.com/gpu-count"),
}
NODE_KEYS = sorted({*VOLCANO.locks, *HAMI.locks, *VOLCANO.handshake, *HAMI.handshake})
PIECES = (A, B, ",", ";", ":", "NVIDIA", "128", "0", "1", "{", "}", '"', "failed", NODE, "[0-1]")
TEXT = st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join))


def texts(keys):
    return st.dictionaries(st.sampled_from(keys), TEXT)


@pytest.mark.parametrize("scheme", ROLES)
@given(data=st.data())
def test_any_texts_give_an_answer_or_a_refusal(scheme, data):
    role = ROLES[scheme]
    devices = role.devices([gpu(A, 0), gpu(B, 1)])
    asked = st.integers(-1, 2**40)
    limits = {name: data.draw(asked) for name in role.language.resources}
    containers = [container(name, limits) for name in data.draw(st.sets(st.sampled_from("xyz")))]
    said, labels = data.draw(texts(POD_KEYS[scheme])), data.draw(texts(POD_KEYS[scheme]))
    subject = pod(said, *containers, labels=labels)
    with suppress(Refused):
        for each in role.claim(subject, NODE, devices, no_books(devices)):
            assert {share.device for share in each.shares} <= {A, B}
            role.edits(subject, each, "f00d", by_name(devices))
    mine = (Allocation("x", (Share(A, GIB),), Phase.ASSIGNED),)
    for bound in ((), ("x",)):
        marks = role.pod_marks(subject, tenant_of(subject, mine, bound), by_name(devices), NOW)
        assert set(marks) <= set(POD_KEYS[scheme])
    assert set(role.failure_marks(subject)) <= set(POD_KEYS[scheme])
    there = node(data.draw(texts(NODE_KEYS)))
    role.node_marks(there, devices, NOW)
    role.lock_to_release(there, [subject], {subject.ref.uid})
