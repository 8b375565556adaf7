"""The device plugin's allocation records beside the scheduler's view of the same node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.capacity import NodeCapacity
from tests.scheduler.generated import STATES
from tests.scheduler.test_differential import FILLERS, NOW, filled
from tests.scheduler.test_promise import SCHEMES
from vgpu.placement.node_view import held_shares, node_view


@pytest.mark.parametrize("system", sorted(STATES))
@given(data=st.data())
def test_what_is_free_is_the_same_in_the_records_and_in_the_view(system, data):
    """Of pods that a placement has put there, whose shares the records hold one after another."""
    (scheme,) = (each for each in SCHEMES if each.row.name == system)
    node = data.draw(st.sampled_from(STATES[system]))
    pods = filled(node, scheme, data.draw(FILLERS))
    gpus = node_view(node, scheme, pods, (), (), now=NOW).candidate.gpus
    devices = [gpu.device for gpu in gpus]
    records = NodeCapacity.of(devices)
    for pod in pods:
        records = records.hold(pod.ref, held_shares(scheme, pod, devices))
    for gpu in gpus:
        free = records.free(gpu.device.name)
        assert (free.memory_bytes, free.cores_milli) == (gpu.free_bytes, gpu.free_milli)
        slots = gpu.device.slots
        assert free.slots == (None if slots is None else slots - gpu.users)
