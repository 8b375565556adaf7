"""What was read before is not read again, and what has changed is."""

import msgspec

from tests.ledger.ledger_values import A, B, pod
from vgpu.ledger.node import StatementCache
from vgpu.model.facts import Grant
from vgpu.model.names import Source
from vgpu.model.objects import Container
from vgpu.schemes.volcano.codec import Volcano

NUMBER = "volcano.sh/vgpu-number"
READ = []


class Watched(Volcano, frozen=True):
    """Volcano's codec, with a record of whose claims and requests were read."""

    def claim(self, pod):
        READ.append(pod.ref.uid)
        return super().claim(pod)

    def requests(self, pod):
        READ.append("requests")
        return super().requests(pod)


def reserved(uid, gpu=A):
    annotations = {"volcano.sh/vgpu-ids-new": f"{gpu},NVIDIA,1024,30:"}
    return pod(uid, annotations=annotations, containers=(Container("main", {NUMBER: 1}),))


def grant(uid, gpu=A):
    return Grant(uid, "main", NUMBER, (f"{gpu}-0",), {"NVIDIA_VISIBLE_DEVICES": gpu})


def read(memory, *pods):
    """Whose claims were read this time, and the devices of each pod."""
    READ.clear()
    readings = memory.readings(pods, (Watched(),))
    devices = [statement.shares[0].device for one in readings for statement in one.statements]
    return [uid for uid in READ if uid != "requests"], devices


def test_only_pods_that_changed_are_read_again():
    memory, first, second = StatementCache(), reserved("u1"), reserved("u2")
    assert read(memory, first, second) == (["u1", "u2"], [A, A])
    assert read(memory, first, second) == ([], [A, A])
    assert read(memory, second, reserved("u1")) == ([], [A, A])  # equal, and in another order
    assert read(memory, first, reserved("u2", B)) == (["u2"], [A, B])
    assert read(memory, first) == ([], [A])
    assert read(memory, first, second) == (["u2"], [A, A])  # gone in between: forgotten


def allocated(memory, *grants, source=Source.CHECKPOINT):
    """How often the codec was asked, and the allocated devices."""
    READ.clear()
    found = memory.allocations(grants, (Watched(),), source)
    return len(READ), [statement.shares[0].device for one in found for statement in one.statements]


def test_only_containers_whose_grants_changed_are_read_again():
    memory = StatementCache()
    assert allocated(memory, grant("u1"), grant("u2")) == (1, [A, A])  # the same units, asked once
    assert allocated(memory, grant("u1"), grant("u2")) == (0, [A, A])
    assert allocated(memory, grant("u1"), grant("u2", B)) == (1, [A, B])
    more = msgspec.structs.replace(grant("u1"), resource="volcano.sh/vgpu-memory")
    assert allocated(memory, grant("u1"), more) == (1, [A])


def test_sources_are_remembered_apart():
    memory = StatementCache()
    allocated(memory, grant("u1"))
    assert allocated(memory, source=Source.POD_RESOURCES) == (0, [])
    assert allocated(memory, grant("u1")) == (0, [A])
