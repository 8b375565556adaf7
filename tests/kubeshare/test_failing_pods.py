"""A holder pod that fails is deleted and created again, after a wait, with an event."""

import json

from msgspec import structs

from kubeshare.reasons import SharePodReason
from tests.kubeshare.model_cluster import share_pod
from tests.kubeshare.test_idle_pool import FIRST, Idle, Recorded, holder
from tests.support.waiting import wait_until
from vgpu.apiserver.backoff import LONGEST_SECONDS
from vgpu.schemes.kubeshare.node import holder_name


class Creating(Recorded):
    """An API server that also notes which pods are created, and each event."""

    def __init__(self):
        super().__init__()
        self.created, self.reasons = [], []

    def send(self, verb, kind, namespace, name, body):
        uid = f"uid-{len(self.created)}"
        self.created.append(body["metadata"]["name"])
        metadata = {**body["metadata"], "uid": uid}
        return json.dumps({**body, "metadata": metadata, "status": {"phase": "Pending"}}).encode()

    def write_event(self, note):
        self.reasons.append(note.reason)


def test_a_holder_that_fails_before_its_gpu_is_known_comes_back_after_a_wait():
    name, key = holder_name(*FIRST), f"kube-system/{holder_name(*FIRST)}"
    api = Creating()
    idle = Idle(keep_idle=0, idle_seconds=0.0, api=api)
    idle.controllers.set_share_pod("ns/a", share_pod("a", node=FIRST.node, gpuid=FIRST.gpuid))
    for number in range(1, 5):
        assert idle.deleted_at(idle.now, FIRST) == []
        assert api.created == [name] * number
        failed = holder(FIRST, "")
        idle.see(structs.replace(failed, pod=structs.replace(failed.pod, phase="Failed")))
        assert idle.deleted_at(idle.now, FIRST) == [name]
        idle.controllers.set_pod(key, None)
        idle.deleted_at(idle.now, FIRST)
        assert api.created == [name] * number, "not at once"
        idle.now += LONGEST_SECONDS
    wait_until(lambda: SharePodReason.HOLDER_FAILED in api.reasons, "its event")


def test_a_holder_that_is_lost_comes_back_at_once():
    name, key = holder_name(*FIRST), f"kube-system/{holder_name(*FIRST)}"
    api = Creating()
    idle = Idle(keep_idle=0, idle_seconds=0.0, api=api)
    idle.controllers.set_share_pod("ns/a", share_pod("a", node=FIRST.node, gpuid=FIRST.gpuid))
    for number in range(1, 4):
        idle.see(holder(FIRST))
        idle.deleted_at(idle.now, FIRST)
        idle.controllers.set_pod(key, None)
        idle.deleted_at(idle.now, FIRST)
        assert api.created == [name] * number
