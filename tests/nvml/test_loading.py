"""The library as the dynamic linker finds it: each test in a process of its own."""

from tests.support.nvml_fake import Device, Fault, Process, uuid

SAMPLE = """
    import time
    from vgpu.model.reasons import SourceError
    from vgpu.sources.nvml import NvmlSource
    source = NvmlSource()
"""


def test_the_library_is_found_by_its_soname(driver, child):
    driver.write(devices=[Device(uuid(0))], processes=[Process(uuid(0), 4711)])
    code = f"""{SAMPLE}
    sample = source.sample(time.time())
    print(sample.gpus[0].uuid, sample.processes[0].pid)
    source.close()
    """
    assert child(driver, code) == [uuid(0), "4711"]


def test_a_library_that_is_missing_at_first_is_found_when_it_appears(driver, child, tmp_path):
    folder = tmp_path / "later"
    folder.mkdir()
    driver.write(devices=[Device(uuid(0))])
    code = f"""{SAMPLE}
    import os, shutil
    for attempt in range(3):
        try:
            sample = source.sample(time.time())
            print(len(sample.gpus), sample.generation)
        except SourceError as error:
            print(error.reason.name)
        source.wait_xids(0.01)
        if attempt == 1:
            library = os.environ["LIBRARY"]
            shutil.copy(library, os.environ["LD_LIBRARY_PATH"])
    """
    library = f"{driver.env()['LD_LIBRARY_PATH']}/libnvidia-ml.so.1"
    answers = child(driver, code, LD_LIBRARY_PATH=str(folder), LIBRARY=library)
    assert answers == ["LIBRARY_NOT_FOUND", "LIBRARY_NOT_FOUND", "1", "1"]


def test_a_call_that_hangs_leaves_the_interpreter_free(driver, child):
    fault = Fault("nvmlDeviceGetTemperatureV", delay_ms=600_000, device=uuid(1))
    driver.write(devices=[Device(uuid(0)), Device(uuid(1))], faults=[fault])
    code = f"""{SAMPLE}
    import os, threading
    from tests.support.waiting import wait_until
    worker = threading.Thread(target=source.sample, args=(time.time(),), daemon=True)
    worker.start()
    wait_until(
        lambda: source.calls().keys() >= {{"nvmlDeviceGetTemperatureV", "nvmlDeviceGetName"}},
        "the first GPU is read",  # the second hangs
        context=lambda: str(source.calls()),
    )
    for _ in range(100):
        source.calls(), source.xids()
        time.sleep(0.001)
    print(worker.is_alive(), source.calls()["nvmlDeviceGetTemperatureV"].count, flush=True)
    os._exit(0)
    """
    assert child(driver, code) == ["True", "1"]
