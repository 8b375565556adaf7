"""Whatever stands in annotations and limits: a role answers, or refuses in its own words."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.adapters.gpushare import GpushareAdapter
from deviceplugin.adapters.volcano import HandshakeMode, VolcanoAdapter
from deviceplugin.reasons import BindRefused
from tests.support.plugin_pods import (
    NODE,
    NOW,
    A,
    B,
    admitted_pod_of,
    by_name,
    container,
    gpu,
    no_capacity,
    node,
    pod,
)
from vgpu.model.allocation import Allocation, Share
from vgpu.model.names import Phase
from vgpu.model.units import GIB
from vgpu.schemes.gpushare.codec import ANNOTATIONS
from vgpu.schemes.volcano.codec import HAMI, VOLCANO, Volcano

ROLES = {
    "volcano": VolcanoAdapter(Volcano(), handshake=HandshakeMode.ON),
    "hami": VolcanoAdapter(Volcano(HAMI), handshake=HandshakeMode.AUTO),
    "gpushare": GpushareAdapter(),
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
    adapter = ROLES[scheme]
    devices = adapter.devices([gpu(A, 0), gpu(B, 1)])
    asked = st.integers(-1, 2**40)
    limits = {name: data.draw(asked) for name in adapter.codec.resources}
    containers = [container(name, limits) for name in data.draw(st.sets(st.sampled_from("xyz")))]
    annotations, labels = data.draw(texts(POD_KEYS[scheme])), data.draw(texts(POD_KEYS[scheme]))
    object_name = pod(annotations, *containers, labels=labels)
    with suppress(BindRefused):
        for each in adapter.claim(object_name, NODE, devices, no_capacity(devices)):
            assert {share.device for share in each.shares} <= {A, B}
            adapter.edits(object_name, each, "f00d", by_name(devices))
    mine = (Allocation("x", (Share(A, GIB),), Phase.ASSIGNED),)
    for bound in ((), ("x",)):
        marks = adapter.pod_annotations(
            object_name, admitted_pod_of(object_name, mine, bound), by_name(devices), NOW
        )
        assert set(marks) <= set(POD_KEYS[scheme])
    assert set(adapter.failure_annotations(object_name)) <= set(POD_KEYS[scheme])
    there = node(data.draw(texts(NODE_KEYS)))
    adapter.node_annotations(there, devices, NOW)
    adapter.lock_to_release(there, [object_name], {object_name.ref.uid})
