"""What is true of a simulated node at a time, for the demo and for fleets."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.demo import demo
from simulator.scenario import End
from simulator.scheme_objects import claims, grants, registered
from simulator.state import alive_at, gpus_at, regions_at, uses_at
from tests.support.fleet_node import PROCESSES, fleet_node
from vgpu.model.names import Scheme

SCENARIOS = {
    "demo": demo(),
    "fleet of 8": fleet_node(containers=8),
    "fleet of 80": fleet_node(containers=80),
    "fleet of 240": fleet_node(containers=240),
}
any_scenario = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
moments = st.floats(0, 2e9)


@any_scenario
@given(t=moments)
def test_memory_adds_up(scenario, t):
    attributed = Counter()
    for use in uses_at(scenario, t):
        assert use.used_bytes > 0
        attributed[use.gpu] += use.used_bytes
    for state in gpus_at(scenario, t):
        gpu = state.gpu
        assert state.used_bytes + state.free_bytes + gpu.reserved_bytes == gpu.memory_bytes
        assert state.free_bytes >= 0
        assert attributed[gpu.uuid] + gpu.baseline_bytes == state.used_bytes


@any_scenario
@given(t=moments)
def test_no_gpu_is_busier_or_hotter_than_it_can_be(scenario, t):
    for state in gpus_at(scenario, t):
        assert 0 <= state.sm_percent <= 100
        assert state.gpu.idle_watts <= state.watts <= state.gpu.limit_watts


@any_scenario
@given(t=moments, step=st.floats(0.001, 1e4))
def test_energy_never_falls_and_follows_the_power(scenario, t, step):
    for before, after in zip(gpus_at(scenario, t), gpus_at(scenario, t + step), strict=True):
        slack = 1e-9 * after.joules
        gained = after.joules - before.joules
        assert before.gpu.idle_watts * step - slack <= gained
        assert gained <= before.gpu.limit_watts * step + slack


def test_energy_is_the_integral_of_the_power():
    scenario, step = demo(), 0.01
    total = [0.0, 0.0]
    for number in range(6000):
        for index, gpu in enumerate(gpus_at(scenario, (number + 0.5) * step)):
            total[index] += gpu.watts * step
    assert [gpu.joules for gpu in gpus_at(scenario, 60)] == pytest.approx(total, rel=1e-3)


@any_scenario
def test_pids_and_container_ids_are_unique(scenario):
    pids = Counter(process.pid for process in scenario.processes())
    ids = Counter(container.id for _, container in scenario.containers())
    assert set(pids.values()) == set(ids.values()) == {1}


@pytest.mark.slow
@any_scenario
@given(t=moments)
def test_equal_times_give_equal_states(scenario, t):
    assert regions_at(scenario, t, 1.7e9) == regions_at(scenario, t, 1.7e9)


@any_scenario
def test_time_moves_memory_load_and_regions(scenario):
    a, b = 1, 12
    assert {use.used_bytes for use in uses_at(scenario, a)} != {
        use.used_bytes for use in uses_at(scenario, b)
    }
    assert [gpu.sm_percent for gpu in gpus_at(scenario, a)] != [
        gpu.sm_percent for gpu in gpus_at(scenario, b)
    ]
    assert regions_at(scenario, a) != regions_at(scenario, b)


@any_scenario
def test_every_id_is_granted_once_and_only_where_it_is_registered(scenario):
    granted = Counter(
        (grant.resource, device) for grant in grants(scenario) for device in grant.device_ids
    )
    assert max(granted.values()) == 1
    known = {(name, device) for name, ids in registered(scenario).items() for device in ids}
    assert granted.keys() <= known


@any_scenario
@given(t=moments)
def test_shims_account_what_the_driver_counts_but_for_what_is_hidden(scenario, t):
    used = {use.pid: use.used_bytes for use in uses_at(scenario, t)}
    regions = regions_at(scenario, t)
    for _, container in scenario.containers():
        hidden = {process.pid: process.hidden for process in container.processes}
        region = regions.get(container.id)
        for slot in region.processes if region else ():
            if slot.host_pid in used:
                accounted = sum(use.total for use in slot.used)
                assert accounted + hidden[slot.host_pid] == used[slot.host_pid]


# ---------------------------------------------------------------- what the demo shows


def by_name(prefix):
    return next(pod for pod in demo().pods if pod.ref.name.startswith(prefix))


def used_of(pod, t, gpu=None):
    pids = {process.pid for container in pod.containers for process in container.processes}
    return sum(
        use.used_bytes for use in uses_at(demo(), t) if use.pid in pids and gpu in (None, use.gpu)
    )


def test_the_demo_has_two_models_and_all_four_schemes_running():
    scenario = demo()
    assert len({gpu.name for gpu in scenario.gpus}) == len(scenario.gpus) == 2
    running = [c for pod, c in scenario.containers() if pod.running]
    assert len(running) >= 6
    assert {c.scheme for c in running} == set(Scheme) - {Scheme.NONE, Scheme.DRA}
    layouts = {container.shim.layout for container in running if container.shim}
    assert layouts == {"v0", "v1.1", "v1.1c", "v1.2"}


@given(t=moments)
def test_finetune_is_over_its_limit_and_nobody_else_is(t):
    over = {
        claim.pod.ref.name
        for claim in claims(demo(), 0)
        for share in claim.container.shares
        if used_of(claim.pod, t, share.device) > share.memory_bytes
    }
    assert over == {"finetune-0"}


@given(t=moments)
def test_the_region_of_finetune_accounts_no_more_than_its_limit(t):
    region = regions_at(demo(), t)[by_name("finetune").containers[0].id]
    for index, device in enumerate(region.devices):
        accounted = sum(slot.used[index].total for slot in region.processes)
        assert accounted <= device.memory_limit_bytes


@given(t=moments)
def test_a_killed_process_keeps_its_slot_but_not_its_memory(t):
    pod = by_name("notebook-bao")
    region = regions_at(demo(), t)[pod.containers[0].id]
    (slot,) = region.processes
    killed = next(p for p in pod.containers[0].processes if p.end is End.KILLED)
    assert (slot.host_pid, slot.status) == (killed.pid, 1)
    assert slot.used[0].total > 0
    assert used_of(pod, t) == 0
    assert slot.host_pid not in alive_at(demo(), t)


def test_embeddings_is_blocked_while_chat_works_and_only_then():
    chat, embeddings = (by_name(name).containers[0].id for name in ("chat", "embeddings"))
    for t, (high, low) in {30: (2, -1), 90: (0, 2), 150: (2, -1)}.items():
        regions = regions_at(demo(), t)
        assert (regions[chat].recent_kernel, regions[embeddings].recent_kernel) == (high, low)
        assert regions[chat].priority < regions[embeddings].priority


def test_an_idle_container_has_a_region_without_processes():
    region = regions_at(demo(), 5)[by_name("notebook-anna").containers[0].id]
    assert region.processes == ()
    assert region.devices[0].memory_limit_bytes > 0


def test_a_clean_exit_leaves_a_dead_slot():
    (slot,) = regions_at(demo(), 5)[by_name("dataprep").containers[0].id].processes
    assert (slot.pid, slot.status) == (0, 0)


def test_one_pod_was_refused_and_one_is_known_to_nobody():
    scenario = demo()
    (refused,) = (pod for pod in scenario.pods if pod.phase == "Failed")
    assert refused.reason == "UnexpectedAdmissionError"
    (deleted,) = (pod for pod in scenario.pods if pod.deleted)
    assert deleted.containers[0].id in regions_at(scenario, 0)
    assert not {refused.ref.uid, deleted.ref.uid} & {grant.pod_uid for grant in grants(scenario)}


def test_a_host_process_makes_the_attribution_gap():
    pids = {process.pid for process in demo().host_processes}
    assert pids <= {use.pid for use in uses_at(demo(), 0)}


def test_the_time_of_the_last_kernel_is_in_unix_seconds():
    embeddings = by_name("embeddings").containers[0].id
    assert regions_at(demo(), 90, start=1.7e9)[embeddings].last_kernel_time == 1_700_000_090
    assert regions_at(demo(), 150, start=1.7e9)[embeddings].last_kernel_time == 1_700_000_120


# ---------------------------------------------------------------- fleets


def test_fleets_differ_by_index_in_every_identity():
    first, second = fleet_node(index=0), fleet_node(index=1)
    for identities in (
        lambda s: {gpu.uuid for gpu in s.gpus},
        lambda s: {pod.ref.uid for pod in s.pods},
        lambda s: {pod.ref.name for pod in s.pods},
        lambda s: {container.id for _, container in s.containers()},
    ):
        assert not identities(first) & identities(second)


def test_a_fleet_spreads_its_containers_evenly():
    scenario = fleet_node(gpus=8, containers=240)
    per_gpu = Counter(c.shares[0].device for _, c in scenario.containers())
    assert set(per_gpu.values()) == {30}
    assert sum(1 for _ in scenario.processes()) == 240 * PROCESSES
