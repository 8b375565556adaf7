"""The device plugin and a real kubelet: lists, restarts, answers, refusals."""

import pytest

from deviceplugin.kubelet.container_devices import read_assignments
from deviceplugin.kubelet.device_lists import offered
from deviceplugin.kubelet.registrar import Registrar
from deviceplugin.kubelet.registration import RegistrationOutcome
from deviceplugin.list_size import KUBELET_LIMIT
from deviceplugin.reasons import BindRefusal, BindRefused
from tests.deviceplugin.scripted_allocator import ScriptedAllocator, raises
from tests.support.bed import objects
from tests.support.bed.deviceplugin import FOLDER
from tests.support.waiting import wait_until
from vgpu.model.allocation import Device
from vgpu.model.names import Scheme
from vgpu.model.units import GIB
from vgpu.schemes.codec import ContainerEdits
from vgpu.schemes.volcano.codec import Volcano

NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
NAME = "0123456789abcdef01234567"
EDITS = ContainerEdits({"GIVEN": "by us"})


def gpus(gib=80, *, healthy=True):
    uuids = [f"GPU-ad63c684-5593-111a-cbb1-{number:012d}" for number in range(8)]
    return tuple(
        Device(uuid, number, gib * GIB, slots=10, healthy=healthy)
        for number, uuid in enumerate(uuids)
    )


@pytest.fixture
def allocator():
    allocator = ScriptedAllocator()
    allocator.allocating = lambda resource, ids: (NAME, EDITS)
    return allocator


@pytest.fixture
def registrar(node, allocator):
    """Without CDI, for which there would have to be a spec file."""
    made = Registrar(str(node.path(FOLDER)), Scheme.VOLCANO, (NUMBER, MEMORY), allocator, cdi=False)
    made.start()
    yield made
    made.stop()


def offer(registrar, resource=NUMBER, factor=1024, *, healthy=True):
    listed = offered(Volcano(memory_factor=factor), resource, gpus(healthy=healthy))
    registrar.offer(resource, listed.message)
    return listed


def state(registrar, resource=NUMBER):
    return next(each for each in registrar.states() if each.resource == resource)


def wait_registered(registrar, times):
    def registered():
        found = state(registrar)
        return found.registered and found.outcomes.get(RegistrationOutcome.REGISTERED) == times

    wait_until(registered, f"registered {times} times", context=lambda: str(registrar.states()))


def wait_counted(control_plane, node, resource, capacity, allocatable):
    def counts(found):
        status = found["status"]
        amounts = [status[of].get(resource, "0") for of in ("capacity", "allocatable")]
        return amounts == [str(capacity), str(allocatable)]

    path = f"/api/v1/nodes/{node.name}"
    control_plane.client.wait_for(path, counts, f"{resource} {capacity}/{allocatable}")


def assignments(node):
    return read_assignments(str(node.path(f"{FOLDER}/kubelet_internal_checkpoint")), NUMBER)


def test_what_is_offered_is_counted_and_again_after_a_restart(control_plane, node, registrar):
    offer(registrar)
    wait_counted(control_plane, node, NUMBER, 80, 80)
    offer(registrar, healthy=False)
    wait_counted(control_plane, node, NUMBER, 80, 0)
    node.restart_kubelet()
    wait_registered(registrar, 2)
    offer(registrar)
    node.kill_kubelet()
    wait_until(lambda: not state(registrar).registered, "its end is seen")
    node.start_kubelet()
    node.wait_ready()
    wait_registered(registrar, 3)
    wait_counted(control_plane, node, NUMBER, 80, 80)


def test_a_plugin_that_starts_again_and_again_is_always_taken(control_plane, node, allocator):
    for number in range(1, 6):
        made = Registrar(str(node.path(FOLDER)), Scheme.VOLCANO, (NUMBER,), allocator, cdi=False)
        made.start()
        offer(made)
        wait_until(lambda made=made: state(made).registered, f"start {number} is taken")
        made.stop()
    wait_counted(control_plane, node, NUMBER, 80, 0)


def test_a_list_of_nearly_the_most_is_taken_and_a_longer_one_is_not(control_plane, node, registrar):
    listed = offer(registrar, MEMORY, factor=11)
    assert KUBELET_LIMIT * 0.9 < listed.longest_bytes <= KUBELET_LIMIT
    wait_counted(control_plane, node, MEMORY, listed.healthy, listed.healthy)
    registrar.offer(MEMORY, listed.message * 2)
    wait_until(
        lambda: state(registrar, MEMORY).outcomes.get(RegistrationOutcome.NOT_READ),
        "the kubelet refuses it",
    )
    registrar.offer(MEMORY, listed.message)
    wait_counted(control_plane, node, MEMORY, listed.healthy, listed.healthy)


def test_the_checkpoint_records_which_pod_got_which_answer(
    control_plane, node, namespace, registrar, allocator
):
    started = []
    allocator.prestarting = lambda *asked: started.append(asked)
    offer(registrar)
    wait_registered(registrar, 1)
    wait_counted(control_plane, node, NUMBER, 80, 80)
    client = control_plane.client
    pod = client.create(objects.pod("served", namespace, limits={NUMBER: 2}))
    client.wait_for(pod, objects.ready, "Ready")
    found = next(a for a in assignments(node) if a.pod_uid == client.get(pod)["metadata"]["uid"])
    assert (found.container, found.name, found.answer) == ("main", NAME, EDITS)
    assert len(found.ids) == 2
    assert (NUMBER, found.ids) in started


def test_a_refused_start_is_in_the_pods_status_and_tried_again(
    control_plane, node, namespace, registrar, allocator
):
    allocator.prestarting = raises(BindRefused(BindRefusal.NO_CLAIM, "no scheduler has decided"))
    offer(registrar)
    wait_registered(registrar, 1)
    wait_counted(control_plane, node, NUMBER, 80, 80)
    client = control_plane.client
    pod = client.create(objects.pod("held", namespace, limits={NUMBER: 1}))

    def waits(found):
        (status,) = found["status"].get("containerStatuses") or [{}]
        message = status.get("state", {}).get("waiting", {}).get("message", "")
        return "PreStartContainer check failed: no scheduler has decided (no_claim)" in message

    client.wait_for(pod, waits, "waiting with our words")
    allocator.prestarting = lambda *_: None
    client.wait_for(pod, objects.ready, "Ready")


def test_a_refused_allocate_is_in_the_pods_status(
    control_plane, node, namespace, registrar, allocator
):
    allocator.allocating = raises(
        BindRefused(BindRefusal.NO_CANDIDATE, "nobody waits for 1 device")
    )
    offer(registrar)
    wait_registered(registrar, 1)
    wait_counted(control_plane, node, NUMBER, 80, 80)
    client = control_plane.client
    pod = client.create(objects.pod("refused", namespace, limits={NUMBER: 1}))

    def refused(found):
        status = found["status"]
        return status.get("reason") == "UnexpectedAdmissionError" and (
            "nobody waits for 1 device (no_candidate)" in status["message"]
        )

    client.wait_for(pod, refused, "refused with our words")
