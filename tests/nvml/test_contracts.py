"""NVML's protocol as nvml.h describes it: the fake keeps it, and so does a real driver if here.

The first part runs on both; the second needs a state that only the fake can be put into.
"""

import ctypes
import time

import pynvml
import pytest

from tests.support.nvml_fake import NA, Device, Fault, Mig, Process, Sample, Xid, mig_uuid, uuid
from vgpu.sources import nvml_processes, nvml_queries
from vgpu.sources.nvml_calls import Code

COMPUTE = "nvmlDeviceGetComputeRunningProcesses_v3"
UTILIZATION = "nvmlDeviceGetProcessUtilization"


def real_library():
    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None


@pytest.fixture(params=["fake", *(["real"] if real_library() else [])])
def gpu(request):
    """The first GPU of an initialised driver."""
    if request.param == "fake":
        driver = request.getfixturevalue("driver")
        driver.write(
            devices=[Device(uuid(0), used=3 << 30, reserved=1 << 29)],
            processes=[Process(uuid(0), 100 + i, sm=i) for i in range(3)],
        )
    pynvml.nvmlInit()
    yield pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlShutdown()


def code_of(call, *args):
    with pytest.raises(pynvml.NVMLError) as caught:
        call(*args)
    return caught.value.value


def processes(gpu, room):
    """Return code and count of the compute list with room for so many."""
    count = ctypes.c_uint(room)
    array = (pynvml.c_nvmlProcessInfo_v3_t * room)() if room else None
    return getattr(pynvml.nvmlLib, COMPUTE)(gpu, ctypes.byref(count), array), count.value


def test_initialisations_are_counted(gpu):
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() >= 1
    pynvml.nvmlShutdown()
    assert code_of(pynvml.nvmlDeviceGetCount) == Code.UNINITIALIZED
    pynvml.nvmlInit()


def test_a_text_that_does_not_fit_is_refused(gpu):
    buffer = ctypes.create_string_buffer(4)
    assert pynvml.nvmlLib.nvmlDeviceGetUUID(gpu, buffer, 4) == Code.INSUFFICIENT_SIZE
    assert pynvml.nvmlDeviceGetUUID(gpu).startswith("GPU-")


def test_a_process_list_without_room_returns_the_room_that_it_needs(gpu):
    code, needed = processes(gpu, 0)
    assert (code, needed) == (Code.SUCCESS, 0) or (code == Code.INSUFFICIENT_SIZE and needed > 0)
    code, found = processes(gpu, 2 * needed + 5)
    assert code == Code.SUCCESS
    assert found <= 2 * needed + 5


def test_version_1_counts_the_reserve_as_used(gpu):
    first = pynvml.nvmlDeviceGetMemoryInfo(gpu)
    second = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
    assert first.total == second.total
    assert first.used == pytest.approx(second.used + second.reserved, abs=64 << 20)


def test_a_wrong_struct_version_is_refused(gpu):
    memory = pynvml.c_nvmlMemory_v2_t(version=0x03000028)
    code = pynvml.nvmlLib.nvmlDeviceGetMemoryInfo_v2(gpu, ctypes.byref(memory))
    assert code == Code.ARGUMENT_VERSION_MISMATCH


def test_a_process_that_is_on_no_instance_has_no_instance_id(gpu):
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu):
        assert process.gpuInstanceId == process.computeInstanceId == 0xFFFFFFFF


def test_utilisation_after_now_is_not_found(gpu):
    tomorrow = int((time.time() + 86400) * 1e6)
    code = code_of(pynvml.nvmlDeviceGetProcessUtilization, gpu, tomorrow)
    assert code in (Code.NOT_FOUND, Code.NOT_SUPPORTED, Code.SUCCESS)


def test_waiting_for_events_blocks_until_the_timeout(gpu):
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventTypeXidCriticalError, events)
    started = time.monotonic()
    assert code_of(pynvml.nvmlEventSetWait, events, 120) == Code.TIMEOUT
    assert time.monotonic() - started > 0.1
    pynvml.nvmlEventSetFree(events)


def test_the_first_link_past_the_last_is_refused(gpu):
    code = code_of(pynvml.nvmlDeviceGetNvLinkState, gpu, 255)
    assert code in (Code.INVALID_ARGUMENT, Code.NOT_SUPPORTED)


# ---------------------------------------------------------------- on the fake only


def test_all_processes_are_listed_with_the_room_that_was_asked_for(driver):
    driver.write(
        devices=[Device(uuid(0)), Device(uuid(1))],
        processes=[Process(uuid(0), 7, used=NA), Process(uuid(0), 8), Process(uuid(1), 9)],
    )
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert processes(gpu, 0) == (Code.INSUFFICIENT_SIZE, 2)
    assert processes(gpu, 1) == (Code.INSUFFICIENT_SIZE, 2)
    assert processes(gpu, 2) == (Code.SUCCESS, 2)
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    assert {p.pid: p.usedGpuMemory for p in listed} == {7: None, 8: 2**30}  # ULLONG_MAX is None


def test_an_idle_gpu_has_no_processes_and_no_samples(driver):
    driver.write(devices=[Device(uuid(0)), Device(uuid(1), idle_code=0)])
    pynvml.nvmlInit()
    gpu, other = map(pynvml.nvmlDeviceGetHandleByIndex, (0, 1))
    assert processes(gpu, 0) == (Code.SUCCESS, 0)
    assert code_of(pynvml.nvmlDeviceGetProcessUtilization, gpu, 0) == Code.NOT_FOUND
    # Some drivers answer with no sample instead, which nvidia-ml-py raises as an error too.
    assert code_of(pynvml.nvmlDeviceGetProcessUtilization, other, 0) == Code.SUCCESS


def test_only_samples_newer_than_the_last_seen_are_returned(driver):
    driver.write(
        devices=[Device(uuid(0))],
        samples=[Sample(uuid(0), 5, 10, 1000), Sample(uuid(0), 6, 20, 2000)],
    )
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    found = pynvml.nvmlDeviceGetProcessUtilization(gpu, 1000)
    assert [(sample.pid, sample.smUtil, sample.timeStamp) for sample in found] == [(6, 20, 2000)]
    assert code_of(pynvml.nvmlDeviceGetProcessUtilization, gpu, 2000) == Code.NOT_FOUND


def test_events_that_a_gpu_does_not_have_cannot_be_registered(driver):
    driver.write(devices=[Device(uuid(0)), Device(uuid(1), ecc_events=0)])
    pynvml.nvmlInit()
    events = pynvml.nvmlEventSetCreate()
    xid, ecc = pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventTypeDoubleBitEccError
    for index, types in ((0, xid | ecc), (1, xid)):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        assert pynvml.nvmlDeviceGetSupportedEventTypes(gpu) == types
        pynvml.nvmlDeviceRegisterEvents(gpu, types, events)
    code = code_of(pynvml.nvmlDeviceRegisterEvents, gpu, xid | ecc, events)
    assert code == Code.NOT_SUPPORTED


def test_an_event_is_returned_once_with_the_handle_that_was_registered(driver):
    driver.write(devices=[Device(uuid(0)), Device(uuid(1))], xids=[Xid(uuid(1), 31)])
    pynvml.nvmlInit()
    events = pynvml.nvmlEventSetCreate()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1)]
    for handle in handles:
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    event = pynvml.nvmlEventSetWait(events, 1000)
    assert (event.eventType, event.eventData) == (0x8, 31)
    assert ctypes.addressof(event.device.contents) == ctypes.addressof(handles[1].contents)
    assert code_of(pynvml.nvmlEventSetWait, events, 0) == Code.TIMEOUT


def test_mig_devices_are_found_at_their_indices(driver):
    driver.write(
        devices=[
            Device(uuid(0), mig=1),
            Mig(uuid(0), mig_uuid(1), gi=3),
            Mig(uuid(0), mig_uuid(2), gi=5, ci=1),
        ]
    )
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetCount() == 1
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 7
    second = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 1)
    assert pynvml.nvmlDeviceGetUUID(second) == mig_uuid(2)
    assert pynvml.nvmlDeviceGetGpuInstanceId(second) == 5
    assert pynvml.nvmlDeviceGetComputeInstanceId(second) == 1
    assert code_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 2) == Code.NOT_FOUND
    assert code_of(pynvml.nvmlDeviceGetProcessUtilization, gpu, 0) == Code.NOT_SUPPORTED


def test_a_fault_strikes_its_own_calls_only(driver):
    fault = Fault("nvmlDeviceGetPowerUsage", 999, after=1, times=1, device=uuid(1))
    driver.write(devices=[Device(uuid(0)), Device(uuid(1))], faults=[fault])
    pynvml.nvmlInit()
    first, second = map(pynvml.nvmlDeviceGetHandleByIndex, (0, 1))
    for _ in range(3):
        pynvml.nvmlDeviceGetPowerUsage(first)
    pynvml.nvmlDeviceGetPowerUsage(second)
    assert code_of(pynvml.nvmlDeviceGetPowerUsage, second) == Code.UNKNOWN
    pynvml.nvmlDeviceGetPowerUsage(second)
    assert driver.calls()["nvmlDeviceGetPowerUsage"] == 6


def test_a_reload_forgets_initialisations_and_handles(driver):
    driver.write(devices=[Device(uuid(0))])
    pynvml.nvmlInit()
    stale = pynvml.nvmlDeviceGetHandleByIndex(0)
    driver.write(devices=[Device(uuid(0))], epoch=1)
    assert code_of(pynvml.nvmlDeviceGetUUID, stale) == Code.UNINITIALIZED
    pynvml.nvmlInit()
    assert code_of(pynvml.nvmlDeviceGetUUID, stale) == Code.INVALID_ARGUMENT
    driver.unload()
    assert code_of(pynvml.nvmlInit) == Code.DRIVER_NOT_LOADED


# ---------------------------------------------------------------- our tables against the binding


def test_our_codes_are_the_bindings():
    for code in Code:
        name = "NVML_SUCCESS" if code == Code.SUCCESS else f"NVML_ERROR_{code.name}"
        assert getattr(pynvml, name) == code


def test_our_layouts_are_as_long_as_the_bindings():
    assert nvml_processes.PROCESS.size == ctypes.sizeof(pynvml.c_nvmlProcessInfo_v3_t)
    assert nvml_processes.PROCESS_R530.size == ctypes.sizeof(pynvml.c_nvmlProcessDetail_v1_t)
    assert nvml_processes.SAMPLE.size == ctypes.sizeof(pynvml.c_nvmlProcessUtilizationSample_t)


def test_every_call_of_the_tables_exists_in_the_binding():
    tables = nvml_queries.GPU_WITH_PCIE_THROUGHPUT
    queries = [*tables.fast, *tables.slow, *nvml_queries.INSTANCE.fast]
    queries += [query.otherwise for query in queries if query.otherwise]
    infos = (tables.info, nvml_queries.INSTANCE.info, nvml_queries.DRIVER_INFO)
    names = {query.call for query in queries} | {
        call for info in infos for call, _ in info.values()
    }
    assert [name for name in sorted(names) if not hasattr(pynvml, name)] == []


def test_the_numbers_in_the_tables_are_the_bindings():
    assert nvml_queries.CLOCKS == {
        "graphics": pynvml.NVML_CLOCK_GRAPHICS,
        "sm": pynvml.NVML_CLOCK_SM,
        "memory": pynvml.NVML_CLOCK_MEM,
        "video": pynvml.NVML_CLOCK_VIDEO,
    }
    assert sum(nvml_queries.CLOCK_EVENTS.values()) == pynvml.nvmlClocksEventReasonAll
    tables = nvml_queries.GPU_WITH_PCIE_THROUGHPUT
    args = {key: query.args for query in (*tables.slow, *tables.rare) for key in query.parts}
    assert args["pcie_throughput_bytes_per_second", "rx"] == (pynvml.NVML_PCIE_UTIL_RX_BYTES,)
    assert args["pcie_throughput_bytes_per_second", "tx"] == (pynvml.NVML_PCIE_UTIL_TX_BYTES,)
    assert args["ecc_errors", "uncorrected", "aggregate"] == (
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_AGGREGATE_ECC,
    )
    assert args["retired_pages", "double_bit"] == (
        pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    )
    assert args["temperature_threshold_celsius", "slowdown"] == (
        pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
    )
    memory = nvml_queries.GPU.fast[0]
    assert memory.args == (pynvml.nvmlMemory_v2,)
