"""Comparisons of the GPU kit, the state of the fake driver, and what a report has: all pure."""

import msgspec
import pynvml
import pytest

from deploy.gpu_kit import report, smi, start
from deploy.gpu_kit.answers import (
    CallTimes,
    DriverAnswers,
    GpuAnswers,
    ListAnswer,
    QueryAnswer,
    all_queries,
    expected_error,
    kept,
    reading_name,
    restored,
)
from deploy.gpu_kit.checks import CHECKS
from deploy.gpu_kit.checks.device_plugin import nodes_of
from deploy.gpu_kit.checks.hami_core import compared
from deploy.gpu_kit.checks.pids import flavour, which
from deploy.gpu_kit.fake_state import NUMBERS, differences, state_of
from deploy.gpu_kit.result import (
    Result,
    Verdict,
    at_most,
    equal,
    failed,
    near,
    not_run,
    status,
)
from vgpu.model.facts import Region, RegionDevice, RegionProcess, RegionUse
from vgpu.sources.nvml_calls import Code

GPU = "GPU-4f1dbd7c-12e9-4a6b-9d2f-0123456789ab"
MIB = 1024 * 1024

# ---------------------------------------------------------------- comparisons


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (100, Verdict.PASSED),
        (110, Verdict.PASSED),
        (90, Verdict.PASSED),
        (111, Verdict.FAILED),
        (89, Verdict.FAILED),
        (None, Verdict.FAILED),
    ],
)
def test_a_number_passes_within_its_tolerance(seen, verdict):
    result = near("a/b", 100, seen, 10, "bytes")
    assert result.verdict is verdict
    assert (result.expected, result.seen, result.tolerance) == (100, seen, 10)
    assert bool(result.reason) == (verdict is Verdict.FAILED)


def test_a_bound_is_no_tolerance():
    assert at_most("a", 5, 5).verdict is Verdict.PASSED
    assert at_most("a", 5, 5.1).verdict is Verdict.FAILED
    assert at_most("a", 5, None).verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([equal("a", 1, 1)], 0),
        ([equal("a", 1, 1), not_run("b", "no reason")], 0),
        ([equal("a", 1, 1), failed("b", "it did not end")], 1),
        ([not_run("a", "nothing is here")], 1),
        ([], 1),
    ],
)
def test_a_run_in_which_nothing_passed_is_no_success(results, expected):
    assert status(results) == expected


def test_the_important_checks_come_first():
    assert [check.name for check in CHECKS[:2]] == ["pids", "queries"]
    assert len({check.name for check in CHECKS}) == len(CHECKS)


# ---------------------------------------------------------------- nvidia-smi


def answered(call, answer, args=(), error=0, **readings):
    times = CallTimes(1.0, 1.0, 1.0, 1)
    return QueryAnswer(call, args, False, answer, error, readings, None if error else times)


def gpu(*queries, info=None, again=None):
    return GpuAnswers(0, GPU, info or {}, {}, queries, (), again or {})


def compared_with(row, **readings):
    before = {name: pair[0] for name, pair in readings.items()}
    after = {name: pair[1] for name, pair in readings.items()}
    answers = gpu(answered("call", 0, **before), again=after)
    results = smi.compare(answers, {}, {"uuid": GPU, **row})
    return {result.name.removeprefix("queries/0/"): result for result in results}


def test_a_value_that_moves_passes_between_the_readings_before_and_after():
    comparisons = compared_with({"memory.used": "5000"}, memory_used_bytes=(1000 * MIB, 9000 * MIB))
    assert comparisons["memory_used_bytes"].verdict is Verdict.PASSED


@pytest.mark.parametrize(
    ("field", "text", "reading", "value"),
    [
        ("memory.total", "81559", "memory_total_bytes", 81559),  # MiB for bytes
        ("enforced.power.limit", "700.00", "power_limit_watts", 700_000),  # mW for W
        ("clocks.max.sm", "1980", "clock_max_hertz sm", 1980),  # MHz for Hz
        ("fan.speed", "57", "fan_speed_ratio", 57),  # percent for a ratio
        ("remapped_rows.pending", "Yes", "row_remap_pending", 0),
        ("ecc.errors.corrected.volatile.total", "3", "ecc_errors corrected volatile", 0),
    ],
)
def test_a_wrong_unit_or_value_fails(field, text, reading, value):
    comparisons = compared_with({field: text}, **{reading: (value, value)})
    assert comparisons[reading].verdict is Verdict.FAILED


def test_a_reading_that_nvidia_smi_has_not_fails_and_so_does_one_that_only_it_has():
    comparisons = compared_with({"fan.speed": "[N/A]"}, fan_speed_ratio=(0.5, 0.5))
    assert comparisons["fan_speed_ratio"].verdict is Verdict.FAILED
    comparisons = compared_with({"fan.speed": "50 "})
    assert (comparisons["fan_speed_ratio"].expected, comparisons["fan_speed_ratio"].seen) == (
        50,
        "absent",
    )
    assert comparisons["fan_speed_ratio"].verdict is Verdict.FAILED
    comparisons = compared_with({"fan.speed": "[Not Supported]"})
    assert comparisons["fan_speed_ratio"].verdict is Verdict.PASSED


def test_only_fields_that_the_installed_nvidia_smi_lists_are_asked_for():
    text = '"uuid"\nWhat.\n\n"clocks.current.sm" or "clocks.sm"\nWhat.\n\n"clocks.gr"\n"pstate"\n'
    known = smi.known_fields(text)
    assert known == {"uuid", "clocks.current.sm", "clocks.sm", "clocks.gr", "pstate"}
    fields = smi.wanted(known)
    assert fields == ("uuid", "clocks.current.sm", "pstate")
    assert smi.query(fields)[1] == "--query-gpu=uuid,clocks.current.sm,pstate"


def test_lines_of_another_form_are_no_gpus():
    printed = f"{GPU}, 12\nWARNING: infoROM is corrupted\n{GPU}, 1, 2\n"
    assert smi.parse(("uuid", "pstate"), printed) == {GPU: {"uuid": GPU, "pstate": "12"}}


def test_each_compared_reading_is_one_of_the_exporter():
    names = {reading_name(key) for query in all_queries() for key in query.parts}
    assert smi.FIELDS.keys() <= names


# ---------------------------------------------------------------- the fake driver's state


def driver(*queries, lists=(), **info):
    answers = msgspec.structs.replace(gpu(*queries, info=info), lists=lists)
    return DriverAnswers({"driver_version": "580.95.05", "cuda_version": "13.0"}, (answers,))


POWER = answered("nvmlDeviceGetPowerUsage", 100_000, power_usage_watts=100.0)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (answered(POWER.call, None, error=int(Code.NOT_SUPPORTED)), "error code"),
        (answered(POWER.call, [100_000], power_usage_watts=100.0), "shape"),
        (answered(POWER.call, 100, power_usage_watts=0.1), "unit or value"),
        (answered("nvmlDeviceGetFanSpeed", 1), "shape"),
    ],
)
def test_a_difference_in_shape_code_or_unit_is_found(other, reason):
    (difference,) = differences(driver(POWER), driver(other))
    assert (difference.name, difference.reason) == ("0/nvmlDeviceGetPowerUsage", reason)
    assert differences(driver(POWER), driver(POWER)) == []


def test_other_error_codes_of_lists_and_other_texts_are_differences():
    listed = driver(lists=(ListAnswer("nvmlDeviceGetProcessUtilization", 0),))
    refused = driver(lists=(ListAnswer("nvmlDeviceGetProcessUtilization", 6),))
    assert [each.reason for each in differences(listed, refused)] == ["error code"]
    old_library = driver(lists=(ListAnswer("nvmlDeviceGetProcessUtilization", 13),))
    assert differences(old_library, listed) == []
    texts = differences(driver(minor="0", vbios="9"), driver(minor="1"))
    assert {each.name for each in texts} == {"0/minor", "0/vbios"}


def test_lists_have_the_same_entries_and_their_samples_the_same_unit_of_time():
    call, samples = "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization"
    now = 1_764_000_000_000_000

    def listing(used, at, pid=5):
        entry, sample = (5, used, 0, 0), (pid, at, 30, 0, 0, 0)
        return driver(lists=(ListAnswer(call, 0, (entry,)), ListAnswer(samples, 0, (sample,))))

    real = listing(1000, now)
    assert differences(real, listing(1000, now + 10**6)) == []
    assert [each.reason for each in differences(real, listing(1, now))] == ["entries"]
    assert [each.reason for each in differences(real, listing(1000, now // 1000))] == [
        "unit of time"
    ]
    assert [each.reason for each in differences(real, listing(1000, now, 6))] == ["pids"]


def test_values_that_always_move_are_compared_by_their_shape_only():
    energies = [
        answered("nvmlDeviceGetTotalEnergyConsumption", mj, energy_joules=mj / 1000)
        for mj in (1000, 2000)
    ]
    assert differences(driver(energies[0]), driver(energies[1])) == []


def test_the_state_has_what_the_driver_answered_and_not_supported_where_it_refused():
    answers = driver(
        answered("nvmlDeviceGetFanSpeed", None, error=int(Code.NOT_SUPPORTED)),
        POWER,
        answered("nvmlDeviceGetMemoryInfo", {"total": 8, "used": 2, "reserved": 1}, (0x02000028,)),
        lists=(
            ListAnswer("nvmlDeviceGetComputeRunningProcesses_v3", 0, ((4711, 2, 7, 9),)),
            ListAnswer("nvmlDeviceGetProcessUtilization", 0, ((4711, 1000, 30, 0, 0, 0),)),
        ),
        name="NVIDIA H100 80GB HBM3",
    )
    state_driver, device, process = state_of(answers).splitlines()
    assert state_driver == "driver version=580.95.05 cuda=13000"
    settings = dict(word.split("=") for word in device.split()[1:])
    assert settings["name"] == "NVIDIA%20H100%2080GB%20HBM3"
    assert (settings["fan"], settings["power"]) == ("na", "100000")
    assert (settings["total"], settings["used"], settings["reserved"]) == ("8", "2", "1")
    assert process == f"process device={GPU} pid=4711 used=2 gi=7 ci=9 sm=30"


def test_each_query_of_the_table_can_be_set_in_the_fake_drivers_state():
    elsewhere = {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetNvLinkState"}
    settable = {place.partition("/")[0] for place in NUMBERS}
    for query in all_queries():
        key = " ".join((query.call, *map(str, query.args)))
        assert key in settable or query.call in elsewhere, key


def test_an_answer_is_the_same_after_it_was_kept():
    answer = kept([pynvml.c_nvmlUtilization_t(5, 7), (1, b"text"), None])
    assert answer == [{"gpu": 5, "memory": 7}, [1, "text"], None]
    assert restored(answer)[0].memory == 7


def test_only_what_a_device_has_not_is_an_expected_error():
    assert expected_error(0)
    assert expected_error(Code.NOT_SUPPORTED)
    assert not expected_error(Code.UNKNOWN)
    assert not expected_error(Code.GPU_IS_LOST)


# ---------------------------------------------------------------- pids, nodes, regions


def test_whose_pid_the_driver_reports():
    wanted = {"host": 4711, "container": 2}
    assert which(frozenset({1, 4711}), wanted) == "host"
    assert which(frozenset({2}), wanted) == "container"
    assert which(frozenset({3}), wanted) == "other"
    assert which(frozenset(), wanted) == "none"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Rel", "open"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Thu", "proprietary"),
        ("", "unknown"),
    ],
)
def test_the_flavour_of_the_kernel_module(text, expected):
    assert flavour(text) == expected


def test_the_nodes_of_a_gpu_are_found_by_its_uuid_or_index():
    def edits(*paths):
        return {"containerEdits": {"deviceNodes": [{"path": path} for path in paths]}}

    spec = {"devices": [{"name": "0", **edits("/dev/nvidia1")}], **edits("/dev/nvidiactl")}
    assert nodes_of(spec, GPU, 0) == {"/dev/nvidia1", "/dev/nvidiactl"}
    assert nodes_of(spec, GPU, 5) == {"/dev/nvidiactl"}
    spec["devices"][0]["name"] = GPU
    assert nodes_of(spec, GPU, 5) == {"/dev/nvidia1", "/dev/nvidiactl"}


def region(host_pid, *, uuid=GPU, limit=1024 * MIB, pid=10, total=600 * MIB):
    use = RegionUse(0, 0, total, 0, total, None)
    return Region(
        layout="v1",
        devices=(RegionDevice(uuid, limit, 0),),
        processes=(RegionProcess(pid, host_pid, 1, (use,)),),
        proc_num=1,
        utilization_switch=1,
        recent_kernel=0,
        priority=1,
        last_kernel_time=None,
        major_version=None,
        minor_version=None,
    )


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (region(10), set()),
        (region(0), {"host pid in the region"}),
        (region(99), {"host pid in the region"}),
        (region(10, uuid="GPU-other"), {"GPU of the region"}),
        (region(10, limit=5), {"limit in the region"}),
        (region(10, total=100 * MIB), {"memory that it accounts"}),
        (region(10, pid=3), {"processes in the region"}),
    ],
)
def test_what_is_wrong_in_a_region_of_hami_core_is_named(found, wrong):
    results = compared(found, GPU, 10)
    assert {
        result.name.removeprefix("hami-core/")
        for result in results
        if result.verdict is Verdict.FAILED
    } == wrong


# ---------------------------------------------------------------- the report

REPORT = report.Report(
    model="NVIDIA H100 80GB HBM3",
    driver="580.95.05",
    date="2026-01-31",
    version="0.1.0",
    python="3.12.1",
    quick=False,
    complete=True,
    seconds=200,
    status=1,
    facts={"kernel": "6.1", "cost": {"containers": 8}},
    results=(
        equal("pids/outside", "host", "host"),
        near("exporter/memory of container 0", 100, 200, 10, "bytes"),
        not_run("hami-core", "no folder"),
        not_run("cost", "no folder"),
    ),
)


def test_the_text_of_a_report_has_what_failed_and_why_something_was_not_run():
    first, counts, wrong, absent = report.summary(REPORT).splitlines()
    assert first == "NVIDIA H100 80GB HBM3, driver 580.95.05, vgpu 0.1.0, 2026-01-31"
    assert counts == "1 passed, 1 failed, 2 not run"
    name = "failed: exporter/memory of container 0"
    assert wrong == f"{name}: expected 100 ± 10, seen 200 bytes: 100 away, of at most 10"
    assert absent == "not run: hami-core and 1 more: no folder"


def test_a_report_is_read_as_it_was_written(tmp_path):
    report.write(tmp_path, report.files(REPORT, {"page-full.prom": "x 1\n"}, "log"), {})
    found = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=report.Report)
    assert found == msgspec.structs.replace(REPORT, facts={"kernel": "6.1"})
    timings = msgspec.json.decode((tmp_path / "timings.json").read_bytes())
    assert timings["cost"] == {"containers": 8}
    assert (tmp_path / "page-full.prom").read_text() == "x 1\n"


def test_names_of_the_machine_are_replaced_alike_in_all_files(tmp_path):
    other = GPU.replace("4f1d", "aaaa")
    texts = {"b.json": f'"{GPU}": "node-7"', "a.txt": f"{other} {GPU.lower()} 1650223 node-7.x"}
    report.write(tmp_path, texts, {"node-7": "host", "1650223": "165022300"})
    first, second = (f"GPU-00000000-0000-4000-8000-{number:012x}" for number in range(2))
    assert (tmp_path / "b.json").read_text() == f'"{first}": "host"'
    # A longer name that only begins like the host's is another name.
    written = (tmp_path / "a.txt").read_text()
    assert written.replace("gpu-", "GPU-") == f"{second} {first} 165022300 node-7.x"


def test_too_many_files_or_bytes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="9 files"):
        report.write(tmp_path, {str(number): "" for number in range(9)}, {})
    with pytest.raises(ValueError, match="bytes"):
        report.write(tmp_path, {"a": "x" * (report.MOST_BYTES + 1)}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_long_log_keeps_its_end():
    texts = report.files(REPORT, {}, "begin" + "x" * report.MOST_LOG_BYTES + "end")
    assert texts[report.LOG].endswith("end")
    assert len(texts[report.LOG]) == report.MOST_LOG_BYTES


def test_the_folder_of_a_result_is_named_after_gpu_and_driver():
    assert report.folder_name(REPORT) == "nvidia-h100-80gb-hbm3-580.95.05"


# ---------------------------------------------------------------- which wheels fit

WHEELS = [
    "msgspec-0.22.0-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    "bcrypt-5.0.0-cp39-abi3-manylinux_2_28_x86_64.whl",
    "kubernetes-37.0.2-py2.py3-none-any.whl",
    "vgpu-0.1.0-py3-none-any.whl",
]


def test_wheels_fit_by_their_tags():
    assert start.chosen(WHEELS, 12) == (sorted(WHEELS), [])
    assert start.chosen(WHEELS, 13)[1] == ["msgspec"]
    assert not start.fits(WHEELS[1], 8)
    assert not start.fits("no-wheel.whl", 12)


def test_another_python_or_machine_is_refused_in_one_line():
    assert start.refusal(WHEELS, (3, 12), "x86_64") == ""
    assert (
        start.refusal(WHEELS, (3, 11), "x86_64")
        == "the GPU kit needs CPython 3.12, this is 3.11: no wheel of msgspec fits it"
    )
    assert "x86_64, this machine is aarch64" in start.refusal(WHEELS, (3, 12), "aarch64")
    both = [*WHEELS, WHEELS[0].replace("cp312", "cp311")]
    assert start.refusal(both, (3, 11), "x86_64") == ""
    assert "CPython 3.11 or 3.12, this is 3.10" in start.refusal(both, (3, 10), "x86_64")


def test_a_result_is_a_value():
    assert Result("a", Verdict.PASSED) == msgspec.json.decode(
        msgspec.json.encode(Result("a", Verdict.PASSED)), type=Result
    )
