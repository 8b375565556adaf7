"""From the GPUs' health to the lists that the kubelet reads."""

from functools import partial

import pytest

from deviceplugin.adapters.gpushare import GpushareAdapter
from deviceplugin.adapters.volcano import VolcanoAdapter
from deviceplugin.builders.registry import builder_of
from deviceplugin.health.device_health import Health
from deviceplugin.health.incident import Incident, UnhealthyReason
from deviceplugin.kubelet.offers import Offers, gpu_statuses
from tests.deviceplugin.allocation_values import NUMBER
from tests.support.plugin_pods import A, B, gpu
from vgpu.model.units import GIB, MIB
from vgpu.rpc import deviceplugin_pb2 as pb
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.volcano.codec import Volcano

MEMORY = "volcano.sh/vgpu-memory"


class Kubelet:
    """What is listed now."""

    def __init__(self):
        self.lists, self.problems = {}, []

    def listed(self, resource, message):
        self.lists[resource] = message

    def devices(self, resource):
        message = pb.ListAndWatchResponse.FromString(self.lists[resource])
        return {device.ID: device.health for device in message.devices}


def health(*gpus, ill=()):
    cases = {uuid: Incident({UnhealthyReason.XID: "XID 79"}) for uuid in ill}
    return Health({one.uuid: one for one in gpus}, cases, {}, {}, 0)


@pytest.fixture
def kubelet():
    return Kubelet()


def offers(kubelet, adapter=None):
    adapter = adapter or VolcanoAdapter(Volcano(memory_factor=1024), split_count=2)
    unit_of = partial(builder_of(adapter.scheme).unit_of, adapter)
    return Offers(adapter, unit_of, kubelet.listed, kubelet.problems.append)


def test_every_resource_of_every_gpu_is_listed(kubelet):
    made = offers(kubelet)
    devices = made.update(health(gpu(A, 0), gpu(B, 1)))
    assert [device.uuid for device in devices] == [A, B]
    assert len(kubelet.devices(NUMBER)) == 4
    assert len(kubelet.devices(MEMORY)) == 2 * (46068 // 1024)
    assert set(kubelet.devices(NUMBER).values()) == {"Healthy"}
    assert made.devices() == devices
    assert made.servable() == kubelet.lists.keys()


def test_all_shares_of_a_bad_gpu_are_unhealthy_and_the_others_stay(kubelet):
    made = offers(kubelet)
    made.update(health(gpu(A, 0), gpu(B, 1)))
    devices = made.update(health(gpu(A, 0), gpu(B, 1), ill=[A]))
    health_by_id = kubelet.devices(NUMBER)
    assert {name: state for name, state in health_by_id.items() if A in name} == {
        f"{A}-{n}": "Unhealthy" for n in range(2)
    }
    assert {state for name, state in health_by_id.items() if B in name} == {"Healthy"}
    assert [device.healthy for device in devices] == [False, True]
    row = next(row for row in made.rows({NUMBER: True}) if row.resource == NUMBER)
    assert (row.registered, row.healthy, row.unhealthy) == (True, 2, 2)
    made.update(health(gpu(A, 0), gpu(B, 1)))
    assert set(kubelet.devices(NUMBER).values()) == {"Healthy"}


def test_a_list_that_the_kubelet_would_not_take_is_not_offered_and_the_others_are(kubelet):
    large = [gpu(f"GPU-{n:08x}-0000-4000-8000-{n:012x}", n, 20 * 1024) for n in range(8)]
    made = offers(kubelet, VolcanoAdapter(Volcano(memory_factor=1), split_count=2))
    made.update(health(*large))
    assert kubelet.lists[MEMORY] is None
    assert len(kubelet.devices(NUMBER)) == 16
    assert made.servable() == kubelet.lists.keys() - {MEMORY}
    row = next(row for row in made.rows({}) if row.resource == MEMORY)
    assert row.list_bytes > 4 * MIB
    assert row.unit_bytes == kubelet.problems[0].fitting_mib * MIB
    (problem,) = kubelet.problems
    assert f"--volcano.memory-factor that fits is {problem.fitting_mib}" in str(problem)


def test_a_problem_is_logged_once_and_again_when_it_changes(kubelet):
    def gpus_of(mebibytes):
        return [gpu(f"GPU-{n:08x}-0000-4000-8000-{n:012x}", n, mebibytes) for n in range(8)]

    made = offers(kubelet, VolcanoAdapter(Volcano(memory_factor=1), split_count=2))
    for _ in range(3):
        made.update(health(*gpus_of(20 * 1024)))
    assert len(kubelet.problems) == 1
    made.update(health(*gpus_of(1024)))
    assert kubelet.devices(MEMORY)
    made.update(health(*gpus_of(20 * 1024)))
    assert len(kubelet.problems) == 2


def test_the_suggested_factor_fits(kubelet):
    large = [gpu(f"GPU-{n:08x}-0000-4000-8000-{n:012x}", n, 20 * 1024) for n in range(8)]
    offers(kubelet, VolcanoAdapter(Volcano(memory_factor=1))).update(health(*large))
    fitting = kubelet.problems[0].fitting_mib
    offers(kubelet, VolcanoAdapter(Volcano(memory_factor=fitting))).update(health(*large))
    assert kubelet.lists[MEMORY] is not None


def test_gpushares_unit_is_named_by_its_own_flag(kubelet):
    large = [gpu(f"GPU-{n:08x}-0000-4000-8000-{n:012x}", n, 20 * 1024) for n in range(8)]
    offers(kubelet, GpushareAdapter(Gpushare(MIB))).update(health(*large))
    assert "--gpushare.memory-unit" in str(kubelet.problems[0])
    offers(kubelet, GpushareAdapter(Gpushare(GIB))).update(health(*large))
    assert len(kubelet.devices("aliyun.com/gpu-mem")) == 8 * 20


def test_a_gpu_whose_memory_is_not_known_is_not_shared_and_the_others_are(kubelet):
    devices = offers(kubelet).update(health(gpu(A, 0, None), gpu(B, 1)))
    assert [device.uuid for device in devices] == [B]
    assert set(kubelet.devices(NUMBER)) == {f"{B}-0", f"{B}-1"}


def test_the_gpus_of_the_metrics_have_their_reasons(kubelet):
    known = health(gpu(A, 0), gpu(B, 1), ill=[B])
    devices = offers(kubelet).update(known)
    assert [
        (device.uuid, device.index, device.reasons) for device in gpu_statuses(devices, known)
    ] == [
        (A, "0", ()),
        (B, "1", ("xid",)),
    ]
