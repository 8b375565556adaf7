"""The real process under faults: none ends it or fails a scrape, each is reported by its reason."""

import json
import os
import resource
import signal
import socket
import struct
import subprocess
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from simulator.demo import demo
from tests.support import nvml_fake
from tests.support.live import TAKEN, LiveExporter, fake_devices, parse
from tests.support.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.slow

NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_UNKNOWN = 999
FAST = "--sample.interval=200ms"


def rejected(reason, collector="shim"):
    return f'vgpu_collector_rejected{{collector="{collector}",reason="{reason}"}}'


def works(series, collector):
    return series.get(f'vgpu_collector_success{{collector="{collector}"}}') == 1


def used(series):
    return {k: v for k, v in series.items() if k.startswith("vgpu_container_memory_used_bytes")}


@pytest.fixture
def live(tmp_path):
    with LiveExporter(tmp_path, demo(), FAST) as exporter:
        yield exporter


def region_folder(live, name):
    root = Path(live.node.paths.shim_roots[0])
    folder = root / f"00000000-0000-4000-8000-00000000{name:04d}_hostile"
    folder.mkdir()
    return folder / "x.cache"


def v11(device_num: int, uuid: bytes = b"") -> bytes:
    """A region of V1.1 (2,008,953 bytes; device_num at 56, uuids at 64)."""
    content = bytearray(2_008_953)
    struct.pack_into("<iII", content, 0, 19920718, 1, 1)
    struct.pack_into("<Q", content, 56, device_num)
    content[64 : 64 + len(uuid)] = uuid
    return bytes(content)


HOSTILE = {
    "empty": b"",
    "unknown_layout": struct.pack("<iII", 19920718, 1, 1),  # the 12 bytes that kill a monitor
    "device_count_out_of_range": v11(5000),
    "bad_uuid": v11(1, b'GPU-"\n\xff'),
    "unknown_device": v11(1, b"GPU-dddddddd-0000-0000-0000-000000000000"),
    "initializing": v11(0),
}


def accounted(series):
    return {
        k: v for k, v in series.items() if k.startswith("vgpu_container_memory_accounted_bytes")
    }


def test_hostile_regions_are_each_refused_and_the_rest_stays_right(live):
    before = used(live.wait_for(used, "used memory"))
    for number, content in enumerate(HOSTILE.values()):
        region_folder(live, number).write_bytes(content)
    another = next(iter(Path(live.node.paths.shim_roots[0]).glob("*/*.cache")))
    region_folder(live, 80).symlink_to(another)
    os.mkfifo(region_folder(live, 81))
    region_folder(live, 82).mkdir()
    reported_reasons = [
        reason for reason in HOSTILE if reason != "unknown_device"
    ]  # its pod does not live
    live.wait_for(
        lambda s: (
            s.get(rejected("not_regular_file")) == 3
            and all(rejected(r) in s for r in reported_reasons)
            and used(s) == before
        ),
        "every reason, and the rest as before",
    )


def test_a_region_that_names_another_tenants_gpu_is_refused(live):
    before = live.wait_for(used, "used memory")
    first, second = (gpu.uuid.encode() for gpu in live.sample.gpus)
    forged = 0
    for root in live.node.paths.shim_roots:
        for path in Path(root).glob("*/*.cache"):
            data = path.read_bytes()
            if data.count(first) == 1 and second not in data:
                path.write_bytes(data.replace(first, second))
                forged += 1
    series = live.wait_for(
        lambda s: s.get(rejected("device_not_allocated")) and used(s) == used(before),
        "the refusal, and the rest as before",
    )
    assert 0 < series[rejected("device_not_allocated")] <= forged


def test_ten_thousand_junk_files_do_not_hurt(live):
    before = used(live.wait_for(used, "used memory"))
    root = Path(live.node.paths.shim_roots[0])
    for i in range(10_000):
        (root / f"junk-{i}").touch()
    live.wait_for(
        lambda s: (
            (rejected("bad_directory_name") in s or rejected("not_regular_file") in s)
            and works(s, "shim")
            and used(s) == before
        ),
        "junk, and the rest as before",
    )


def test_a_file_truncated_and_replaced_under_the_reader_never_ends_it(live):
    path = next(iter(Path(live.node.paths.shim_roots[0]).glob("*/*.cache")))
    whole = path.read_bytes()
    for i in range(60):
        with path.open("r+b") as file:
            file.truncate(12 + i)
        live.metrics()
        draft = path.with_suffix(".new")
        draft.write_bytes(whole)
        draft.replace(path)
    live.wait_for(lambda s: not any(k.startswith(rejected("unknown_layout")) for k in s), "health")
    assert live.process.running


def test_a_driver_call_that_hangs_costs_the_drivers_series_and_nothing_else(tmp_path):
    with LiveExporter(tmp_path, demo(), FAST, "--sample.timeout=200ms") as live:
        live.wait_for(used, "used memory")
        hang = nvml_fake.Fault("nvmlDeviceGetPowerUsage", delay_ms=3_600_000)
        live.write_driver(faults=[hang])
        series = live.wait_for(
            lambda s: (
                s["vgpu_driver_call_stuck_seconds"] > 0
                and not used(s)
                and works(s, "shim")
                and accounted(s)
            ),
            "a stuck driver, and the rest",
        )
        assert not works(series, "nvml")
        calls = sampling(live.driver.calls())
        assert live.get("/-/healthy").status == 200
        live.wait_sampled(0.6)
        assert sampling(live.driver.calls()) == calls  # no second one beside the one that hangs
        assert live.stop(signal.SIGTERM) == 0  # it does not wait for the driver, as this would show


def sampling(calls):
    """Without what waits for events, on a thread of its own."""
    return {name: count for name, count in calls.items() if "Event" not in name}


def test_a_driver_that_comes_late_is_found(tmp_path):
    live = LiveExporter(tmp_path, demo(), FAST)
    live.driver.unload()
    with live:
        series = live.metrics()
        name = 'vgpu_collector_failures_total{collector="nvml",reason="driver_not_loaded"}'
        assert series[name] >= 1
        assert not works(series, "nvml")
        live.write_driver()
        live.wait_for(lambda s: works(s, "nvml") and used(s), "the driver")


def test_without_the_library_the_rest_is_served(tmp_path):
    live = LiveExporter(tmp_path, demo(), FAST)
    live.environment = lambda: dict(os.environ)  # no fake driver in the path
    with live:
        series = live.metrics()
        assert not works(series, "nvml")
        assert works(series, "shim")
        reasons = [
            k for k in series if k.startswith('vgpu_collector_failures_total{collector="nvml"')
        ]
        assert reasons == [
            'vgpu_collector_failures_total{collector="nvml",reason="library_not_found"}'
        ]


def test_a_driver_reload_is_survived(live):
    live.wait_for(used, "used memory")
    live.driver.unload()
    live.wait_for(lambda s: not works(s, "nvml"), "the driver's absence")
    live.write_driver(epoch=1)
    live.wait_for(lambda s: works(s, "nvml") and used(s), "the driver again")


def test_a_replaced_driver_ends_the_process_with_an_error(live):
    live.driver.unload()
    live.wait_for(lambda s: not works(s, "nvml"), "the driver's absence")
    mismatch = nvml_fake.Fault("nvmlInitWithFlags", NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    live.write_driver(faults=[mismatch], epoch=2)
    assert live.process.wait() == 1
    assert "lib_rm_version_mismatch" in live.log()


def test_one_lost_gpu_of_two_leaves_the_other_right(live):
    before = live.wait_for(used, "used memory")
    first, second = fake_devices(live.sample)
    first.settings["lost"] = 1
    live.write_driver(devices=[first, second])
    gone, here = first.settings["uuid"], second.settings["uuid"]
    mine = {k: v for k, v in used(before).items() if here in k}
    assert mine
    series = live.wait_for(
        lambda s: (
            s.get(f'vgpu_gpu_up{{uuid="{gone}"}}') == 0
            and {k: v for k, v in used(s).items() if here in k} == mine
        ),
        "the loss of one GPU, and the other as before",
    )
    assert series["vgpu_gpus"] == 1
    assert series["vgpu_gpus_expected"] == 2


def test_a_gpu_that_is_dead_before_the_start_is_missed(tmp_path):
    live = LiveExporter(tmp_path, demo(), FAST)
    first, second = fake_devices(live.sample)
    first.settings["lost"] = 1  # its handle is refused: it has not even a UUID
    live.write_driver(devices=[first, second])
    with live:
        series = live.metrics()
        assert (series["vgpu_gpus"], series["vgpu_gpus_expected"]) == (1, 2)
        live.write_driver(devices=[second], epoch=1)  # off the bus: not even counted
        series = live.wait_sampled(0.2)
        assert (series["vgpu_gpus"], series["vgpu_gpus_expected"]) == (1, 2)


def without_times(series):
    """The names of a page's series; a driver call or failure that is new is no other page."""
    passing = ("vgpu_nvml_call", "vgpu_collector_failures", "vgpu_collector_rej")
    return {name for name in series if not name.startswith(passing)}


def test_without_a_free_descriptor_the_exporter_goes_on_and_then_has_all_again(live):
    before = live.wait_for(used, "used memory")
    pid = live.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with closing(HTTPConnection("127.0.0.1", live.port, timeout=WAIT_SECONDS)) as connection:

        def page() -> dict[str, float]:
            connection.request("GET", "/metrics")
            return parse(connection.getresponse().read().decode())

        page()  # the connection is open before, as Prometheus keeps its own
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
        # A file that has not changed for two seconds is not opened again.
        Path(live.node.paths.checkpoint).touch()
        wait_until(lambda: not works(page(), "kubelet"), "a sample without descriptors")
        poor = page()
        assert not [name for name in poor if name.startswith("vgpu_container_memory_accounted")]
        assert poor["process_max_fds"] == 3
        assert "process_resident_memory_bytes" not in poor
        taken = poor[TAKEN]
        wait_until(lambda: page()[TAKEN] > taken, "another sample")
        assert live.process.running
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    series = live.wait_for(
        lambda s: without_times(s) >= without_times(before), "all that was there before"
    )
    assert used(series) == used(before)


def test_an_unknown_error_of_one_call_costs_that_reading(live):
    fault = nvml_fake.Fault("nvmlDeviceGetPowerUsage", NVML_ERROR_UNKNOWN)
    live.write_driver(faults=[fault])
    series = live.wait_for(
        lambda s: rejected("driver_error", "nvml") in s and used(s),
        "the error's reason, and the rest",
    )
    assert not any(k.startswith("vgpu_gpu_power_usage_watts") for k in series)


def test_a_corrupt_checkpoint_is_reported_and_the_rest_stays(live):
    path = Path(live.node.paths.checkpoint)
    path.write_bytes(path.read_bytes().replace(b"Checksum", b"Checksun"))
    live.wait_for(
        lambda s: (
            any(k.startswith('vgpu_collector_rejected{collector="kubelet"') for k in s)
            and accounted(s)
        ),
        "the checkpoint's reason, and the rest",
    )


def test_an_absent_kubelet_socket_is_reported_and_the_rest_stays(tmp_path):
    flags = (FAST, f"--kubelet.pod-resources={tmp_path / 'kubelet.sock'}")
    with LiveExporter(tmp_path, demo(), *flags) as live:
        live.wait_for(
            lambda s: used(s) and s.get(rejected("absent", "kubelet")) == 1,
            "used memory, and the absence",
        )


def refused_start(live, *flags):
    """What the exporter prints on standard error when it ends at start with status 1."""
    done = subprocess.run(
        live.command(*flags),
        env=live.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 1
    return done.stderr


def test_a_port_in_use_is_a_clear_error_at_start(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        message = refused_start(LiveExporter(tmp_path, demo()), f"--web.listen-address={address}")
    assert "--web.listen-address" in message
    assert address in message


def test_sigterm_lets_a_scrape_finish_and_exits_0(live):
    with closing(HTTPConnection("127.0.0.1", live.port, timeout=WAIT_SECONDS)) as connection:
        connection.request("GET", "/metrics")
        assert connection.getresponse().read()
        assert live.stop(signal.SIGTERM) == 0
    assert "Traceback" not in live.log()


def test_an_unusable_web_config_is_an_error_at_start_that_names_the_key(tmp_path):
    config = tmp_path / "web.yml"
    config.write_text("tls_server_confg: {}\n")
    message = refused_start(LiveExporter(tmp_path, demo()), f"--web.config.file={config}")
    assert "tls_server_confg" in message


def test_the_log_has_a_lasting_fault_once(live):
    draft = live.node.folder / "draft"
    draft.write_bytes(b"short")
    draft.rename(region_folder(live, 1))  # at once: an empty file is another fault
    live.wait_for(lambda s: rejected("unknown_layout") in s, "the refusal")
    live.wait_sampled(1.0)
    assert live.log().count("input refused") == 1


def test_json_logs_are_one_object_a_line(tmp_path):
    flags = ("--log.format=json", "--web.listen-address=no.such.host.invalid:1")
    lines = refused_start(LiveExporter(tmp_path, demo()), *flags).strip().splitlines()
    assert lines
    assert all(json.loads(line)["level"] for line in lines)
