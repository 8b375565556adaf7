"""An exporter's page as values: what is there, what is not, and pages that are none."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.inventory import short_notes
from vgpucli.top.reading import (
    PageDevice,
    PageError,
    PageShare,
    PageToken,
    in_order,
    read_page,
    read_processes,
)

GPU = "GPU-a"
WHO = 'namespace="ml",pod="train-0",container="main",pod_uid="u1"'
MARK = "vgpu_snapshot_timestamp_seconds 1000\n"
PAGE = f"""\
# HELP vgpu_gpu_info what it is
# TYPE vgpu_gpu_info gauge
vgpu_gpu_info{{uuid="{GPU}",gpu="3",model="NVIDIA A10"}} 1
vgpu_gpu_up{{uuid="{GPU}"}} 1
vgpu_gpu_memory_used_bytes{{uuid="{GPU}"}} 100
vgpu_gpu_memory_total_bytes{{uuid="{GPU}"}} 400
vgpu_gpu_utilization_ratio{{uuid="{GPU}"}} 0.5
vgpu_gpu_temperature_celsius{{uuid="{GPU}"}} 41
vgpu_gpu_power_usage_watts{{uuid="{GPU}"}} 55.5
vgpu_gpu_power_limit_watts{{uuid="{GPU}"}} 150
vgpu_gpu_up{{uuid="GPU-lost"}} 0
vgpu_container_memory_used_bytes{{{WHO},uuid="{GPU}"}} 90
vgpu_container_memory_limit_bytes{{{WHO},uuid="{GPU}"}} 100
vgpu_container_memory_unlimited{{{WHO},uuid="{GPU}"}} 0
vgpu_container_memory_accounted_bytes{{{WHO},uuid="{GPU}"}} 80
vgpu_container_sm_utilization_ratio{{{WHO},uuid="{GPU}"}} 0.25
vgpu_container_info{{{WHO},scheme="volcano",source="shim",layout="v1.2",phase="assigned"}} 1
vgpu_container_blocked{{{WHO}}} 1
vgpu_container_info{{namespace="ml",pod="old",container="c",scheme="gaia",phase="released"}} 1
vgpu_collector_success{{collector="nvml"}} 1
vgpu_collector_success{{collector="shim"}} 0
vgpu_collector_failures_total{{collector="shim",reason="timeout"}} 4
vgpu_driver_call_stuck_seconds 12
vgpu_sample_interval_seconds 15
{MARK}"""


def test_a_page_has_gpus_containers_and_failures():
    reading = read_page(PAGE)
    assert reading.devices == (
        PageDevice(GPU, 3, "NVIDIA A10", "", "", True, 100, 400, None, 0.5, 41, 55.5, 150),
        PageDevice("GPU-lost"),
    )
    assert reading.shares == (
        PageShare(
            "ml",
            "train-0",
            "main",
            "u1",
            GPU,
            "volcano",
            "assigned",
            blocked=True,
            used=90,
            limit=100,
            accounted=80,
            utilization=0.25,
        ),
    )
    assert reading.idle == (PageShare("ml", "old", "c", "", scheme="gaia", phase="released"),)
    assert reading.failing == ("shim (timeout)",)
    assert (reading.timestamp, reading.interval, reading.stuck_seconds) == (1000, 15, 12)


def test_a_page_whose_data_was_withdrawn_is_not_one_of_a_node_without_gpus():
    health = f'vgpu_collector_success{{collector="nvml"}} 1\n{MARK}'
    withdrawn = read_page(health)
    assert withdrawn.failing == ("the last sample (the exporter's log has the reason)",)
    assert read_page(f"vgpu_gpus 0\n{health}").failing == ()


def test_the_order_of_the_series_does_not_matter():
    lines = PAGE.splitlines()
    backwards = read_page("\n".join(reversed(lines)))
    assert backwards == read_page(PAGE)


def test_a_share_that_is_only_promised_is_on_its_gpu_with_what_was_promised():
    reading = read_page(
        f'vgpu_container_memory_allocated_bytes{{{WHO},uuid="{GPU}"}} 70\n'
        f'vgpu_container_shares_allocated{{{WHO},uuid="{GPU}"}} 1\n'
        f'vgpu_container_shares_allocated{{{WHO},uuid="GPU-b"}} 1\n'
        f'vgpu_container_shares_allocated{{pod="p",uuid=""}} 1\n'
        f'vgpu_container_info{{{WHO},scheme="gaia",phase="assumed"}} 1\n{MARK}'
    )
    assert [(s.device, s.limit, s.phase) for s in reading.shares] == [
        (GPU, 70, "assumed"),
        ("GPU-b", None, "assumed"),
    ]
    assert [s.pod for s in reading.idle] == ["p"]
    assert [one.uuid for one in reading.devices] == [GPU, "GPU-b"]


def test_a_pod_has_one_token_of_a_gpu():
    who = 'namespace="ml",pod="train",container="",pod_uid="u1"'
    prefix = "vgpu_container_token"
    reading = read_page(
        f'{prefix}_request_ratio{{{who},uuid="{GPU}"}} 0.5\n'
        f'{prefix}_wait_seconds_total{{{who},uuid="{GPU}"}} 7\n'
        f'{prefix}_window_share_ratio{{{who},uuid="{GPU}"}} 0.4\n{MARK}'
    )
    assert reading.tokens == (
        PageToken("ml", "train", "u1", GPU, request=0.5, share=0.4, waited=7),
    )
    assert reading.shares == ()


def test_a_limit_counts_before_what_was_allocated():
    reading = read_page(
        f'vgpu_container_memory_allocated_bytes{{{WHO},uuid="{GPU}"}} 70\n'
        f'vgpu_container_memory_limit_bytes{{{WHO},uuid="{GPU}"}} 60\n{MARK}'
    )
    assert reading.shares[0].limit == 60


def test_a_container_on_a_gpu_that_nobody_names_is_still_shown():
    reading = read_page(f'vgpu_container_memory_used_bytes{{{WHO},uuid="GPU-x"}} 7\n{MARK}')
    assert reading.devices == (PageDevice("GPU-x"),)
    assert reading.shares[0].used == 7


def test_not_a_number_is_not_known():
    reading = read_page(f'vgpu_gpu_memory_used_bytes{{uuid="a"}} NaN\n{MARK}')
    assert reading.devices == ()


def test_no_label_can_command_the_terminal():
    label = 'namespace="\x1b[2J",pod="p\x07",container="c",pod_uid="u",uuid="\x9b31m"'
    reading = read_page(f"vgpu_container_memory_used_bytes{{{label}}} 7\n{MARK}")
    assert reading.shares[0].name == "?[2J/p?/c"
    assert reading.devices[0].uuid == "?31m"


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("", "not a vgpu exporter"),
        ("<html>Hello</html>", "not a vgpu exporter"),
        ("process_cpu_seconds_total 1\n", "not a vgpu exporter"),
        ('vgpu_gpu_up{uuid="a"} one\n' + MARK, "not a metrics page"),
        ('vgpu_gpu_up{uuid="a" 1\n' + MARK, "not a metrics page"),
    ],
)
def test_what_is_no_page_is_reported_as_none(page, why):
    with pytest.raises(PageError, match=why):
        read_page(page)


@given(st.lists(st.sampled_from(PAGE.splitlines()), max_size=30), st.text(max_size=20), st.data())
def test_a_damaged_page_is_read_or_refused(lines, noise, data):
    text = "\n".join(lines)
    cut = data.draw(st.integers(0, len(text)))
    with contextlib.suppress(PageError):
        read_page(text[:cut] + noise + text[cut:] + "\n" + MARK)


def test_mig_instances_follow_their_gpu():
    devices = [
        PageDevice("MIG-1", 1, parent="GPU-0"),
        PageDevice("GPU-1", 1),
        PageDevice("MIG-0", 0, parent="GPU-0"),
        PageDevice("GPU-0", 0),
        PageDevice("GPU-?"),
    ]
    assert [one.uuid for one in in_order(devices)] == ["GPU-0", "MIG-0", "MIG-1", "GPU-1", "GPU-?"]


# ---------------------------------------------------------------- processes


def test_a_list_of_processes_has_nothing_that_could_change_the_terminal():
    text = '{"timestamp": 1, "processes": [{"pid": 7, "uuid": "GPU-\\u001b", "more": 1}]}'
    (row,) = read_processes(text)
    assert (row.pid, row.uuid, row.used_bytes) == (7, "GPU-?", None)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[" * 5000, '{"timestamp": 1, "processes": [{"pid": "x", "uuid": ""}]}', PAGE],
)
def test_an_answer_that_is_no_list_of_processes_is_refused(text):
    with pytest.raises(PageError, match="not a list of processes"):
        read_processes(text)


# ---------------------------------------------------------------- units


def units(confirmed, *bounds):
    lines = [
        'vgpu_memory_unit_bytes{scheme="volcano"} 1048576',
        f'vgpu_memory_unit_confirmed{{scheme="volcano"}} {confirmed}',
        *(
            f'vgpu_memory_unit_fitting_bytes{{scheme="volcano",bound="{bound}"}} {mebibytes << 20}'
            for bound, mebibytes in bounds
        ),
    ]
    return read_page(PAGE + "\n".join(lines) + "\n")


def test_a_unit_that_is_not_confirmed_has_the_units_that_would_fit():
    reading = units(0, ("least", 8), ("most", 227))
    assert list(short_notes(reading.units)) == [
        "unit unconfirmed, 8 to 227 would fit (--volcano.memory-factor 1)"
    ]
    assert not any(device.unit_confirmed for device in reading.devices)
    (note,) = short_notes(units(0, ("least", 8)).units)
    assert note == "unit unconfirmed, 8 or more would fit (--volcano.memory-factor 1)"


def test_a_confirmed_unit_is_nothing_to_speak_of():
    reading = units(1)
    assert reading.units == ()
    assert all(device.unit_confirmed for device in reading.devices)


def test_the_way_of_sharing_and_the_replicas_are_read():
    of = f'namespace="ml",pod="{{}}",container="main",pod_uid="{{}}",uuid="{GPU}"'
    lines = [
        "vgpu_snapshot_timestamp_seconds 1000",
        f'vgpu_gpu_replicas{{uuid="{GPU}"}} 10',
    ]
    for pod, number in (("a", 1), ("b", 2)):
        labels = of.format(pod, pod)
        lines += [
            f"vgpu_container_shares_allocated{{{labels}}} {number}",
            f'vgpu_container_sharing_info{{{labels},sharing="mps"}} 1',
            f"vgpu_container_process_memory_limit_bytes{{{labels}}} 4096",
        ]
    reading = read_page("\n".join(lines))
    (device,) = reading.devices
    assert (device.sharing, device.replicas, device.replicas_held) == ("mps", 10, 3)
    assert [(one.held, one.process_limit) for one in reading.shares] == [(1, 4096), (2, 4096)]
