"""Metrics and probes, before there is a service and after."""

from collections import Counter
from types import SimpleNamespace

import pytest

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder_state import BinderState
from deviceplugin.health.device_health import Health
from deviceplugin.health.incident import Incident, UnhealthyReason
from deviceplugin.kubelet.registrar import ResourceState as Registration
from deviceplugin.kubelet.registration import RegistrationOutcome
from deviceplugin.metrics import Offer, PluginMetrics, Wait
from deviceplugin.reasons import BindRefusal
from deviceplugin.status_server import StatusView, routes
from tests.deviceplugin.allocation_values import GPUS, NUMBER, A, claimed, pod, share
from tests.support.live import parse
from tests.support.plugin_pods import gpu
from vgpu.web.message import HttpRequest


def window(service=None, health=None, numbers=None):
    made = StatusView(
        "volcano",
        "cdi",
        "gpu-node-1",
        numbers or PluginMetrics(),
        requests=lambda: {("list", "200"): 2},
        build={"version": "1", "revision": "", "python": "3"},
        own=dict,
    )
    made.service = service
    if health:
        made.health = health
    return made


class Service:
    """As far as a page needs one."""

    def __init__(self, *, ready=True, admitted_pods=0):
        allocation_state = AllocationState.of(GPUS)
        for number in range(admitted_pods):
            one = pod(f"p{number}", share(A, 1))
            allocation_state = allocation_state.admitted(one, claimed(one), now=1.0)
        self._state, self._ready = BinderState(allocation_state), ready
        registered = Registration(NUMBER, True, True, "/s", "", {RegistrationOutcome.REGISTERED: 2})
        self.registrar = SimpleNamespace(states=lambda: (registered,))
        self.offers = SimpleNamespace(
            rows=lambda health: (Offer(NUMBER, health[NUMBER], 6, 3, 1000),), devices=lambda: GPUS
        )
        self.binder = SimpleNamespace(expecting=lambda: 1)
        self.status_manager = SimpleNamespace(counts=lambda: {("pod", "told"): 4})

    def ready(self):
        return self._ready

    def state(self):
        return self._state

    def unbound(self):
        return Counter({BindRefusal.NO_ROOM: 2})


def get(made, path):
    response = routes(made)[path](HttpRequest("GET", path, "", {}))
    return response.status, response.body.decode()


def series(made):
    return parse(get(made, "/metrics")[1])


@pytest.mark.parametrize("path", ["/-/healthy", "/healthz"])
def test_it_is_healthy_as_long_as_it_answers(path):
    assert get(window(), path)[0] == 200
    assert get(window(Service(ready=False)), path)[0] == 200


@pytest.mark.parametrize("path", ["/-/ready", "/readyz"])
def test_it_is_ready_when_pods_can_be_served(path):
    assert get(window(), path)[0] == 503
    assert get(window(Service(ready=False)), path)[0] == 503
    assert get(window(Service()), path)[0] == 200


def test_the_page_at_the_root_leads_to_the_metrics_and_probes():
    status, page = get(window(), "/")
    assert status == 200
    assert "vgpu device plugin" in page
    for path in ("/metrics", "/-/healthy", "/-/ready"):
        assert f'<a href="{path}">' in page


def test_before_the_gpus_are_known_there_is_a_page():
    samples = series(window())
    assert samples['vgpu_plugin_info{mode="cdi",node="gpu-node-1",scheme="volcano"}'] == 1
    assert samples["vgpu_plugin_ready"] == 0
    assert samples["vgpu_plugin_recovered"] == 0
    assert not any(name.startswith("vgpu_plugin_device_healthy") for name in samples)


def test_who_holds_what_is_counted():
    samples = series(window(Service(admitted_pods=2)))
    assert samples['vgpu_plugin_tenants{kind="bound"}'] == 2
    assert samples['vgpu_plugin_tenants{kind="foreign"}'] == 0
    assert samples["vgpu_plugin_expected_bindings"] == 1
    assert samples['vgpu_plugin_unbound_containers{reason="no_room"}'] == 2
    assert samples["vgpu_plugin_recovered"] == samples["vgpu_plugin_ready"] == 1


def test_offers_and_registrations_are_reported():
    samples = series(window(Service()))
    resource = f'resource="{NUMBER}"'
    assert samples[f"vgpu_plugin_resource_registered{{{resource}}}"] == 1
    assert samples[f'vgpu_plugin_resource_devices{{health="healthy",{resource}}}'] == 6
    assert samples[f'vgpu_plugin_resource_devices{{health="unhealthy",{resource}}}'] == 3
    registered = f'vgpu_plugin_registrations_total{{{resource},result="registered"}}'
    assert samples[registered] == 2
    assert samples['vgpu_plugin_told_total{result="told",subject="pod"}'] == 4
    assert samples['vgpu_plugin_api_requests_total{code="200",verb="list"}'] == 2


def test_an_unhealthy_gpu_has_its_reasons():
    ill = {A: Incident({UnhealthyReason.XID: "XID 79", UnhealthyReason.LOST: "gone"})}
    health = Health({A: gpu(A)}, ill, {}, {(A, UnhealthyReason.XID): 3}, 0)
    samples = series(window(Service(), health))
    healthy = {name: value for name, value in samples.items() if "device_healthy" in name}
    assert sum(healthy.values()) == len(GPUS) - 1
    assert healthy[f'vgpu_plugin_device_healthy{{gpu="0",uuid="{A}"}}'] == 0
    reasons = [name for name in samples if name.startswith("vgpu_plugin_device_unhealthy_info")]
    assert len(reasons) == 2
    assert samples[f'vgpu_plugin_health_events_total{{reason="xid",uuid="{A}"}}'] == 3


def test_what_is_counted_adds_up():
    numbers = PluginMetrics()
    numbers.allocated(NUMBER)
    numbers.allocated(NUMBER)
    numbers.refused("allocate", BindRefusal.NO_CANDIDATE)
    numbers.waited(Wait.BIND, 0.25)
    numbers.waited(Wait.BIND, 0.5)
    numbers.conflicts(3, 2)
    numbers.checkpoint_read("malformed")
    numbers.checkpoint_failed()
    samples = series(window(Service(), numbers=numbers))
    assert samples[f'vgpu_plugin_allocations_total{{resource="{NUMBER}"}}'] == 2
    assert samples['vgpu_plugin_refusals_total{reason="no_candidate",step="allocate"}'] == 1
    assert samples['vgpu_plugin_waits_total{step="bind"}'] == 2
    assert samples['vgpu_plugin_wait_seconds_total{step="bind"}'] == 0.75
    assert samples["vgpu_plugin_conflicts"] == 3
    assert samples["vgpu_plugin_remarks"] == 2
    assert samples['vgpu_plugin_checkpoint_problem_info{problem="malformed"}'] == 1
    assert samples["vgpu_plugin_checkpoint_write_failures_total"] == 1
