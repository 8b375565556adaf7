"""MIG: instances are devices of their own, and processes are on instances."""

import time

from tests.support.nvml_fake import Device, Fault, Mig, Process, mig_uuid, uuid
from vgpu.model.reasons import Reason

GPU = uuid(0)
FIRST, SECOND = mig_uuid(1), mig_uuid(2)


def node(*extra, **whole_gpu):
    return [
        Device(GPU, mig=1, **whole_gpu),
        Mig(GPU, FIRST, gi=3, total=10 << 30, used=1 << 30),
        Mig(GPU, SECOND, gi=5, ci=1, total=20 << 30, used=2 << 30),
        *extra,
    ]


def on(gi, ci, pid, used=100):
    return Process(GPU, pid, used, gi=gi, ci=ci)


def test_instances_follow_their_gpu_with_their_own_memory(driver, source):
    driver.write(devices=node(Device(uuid(9))))
    sample = source.sample(time.time())
    assert [(gpu.uuid, gpu.parent, gpu.index) for gpu in sample.gpus] == [
        (GPU, "", 0),
        (FIRST, GPU, 0),
        (SECOND, GPU, 1),
        (uuid(9), "", 1),
    ]
    whole_gpu, _, second, _ = sample.gpus
    assert whole_gpu.readings["mig_mode",] == 1
    assert second.readings == {
        ("memory_total_bytes",): 20 << 30,
        ("memory_used_bytes",): 2 << 30,
        ("memory_free_bytes",): 18 << 30,
        ("memory_reserved_bytes",): 0,
    }
    assert second.info["mig_profile"] == "1g.10gb"
    assert second.info["gpu_instance_id"] == "5"
    assert second.info["compute_instance_id"] == "1"
    assert second.info["pci_bus_id"] == whole_gpu.info["pci_bus_id"]
    assert second.info["name"] == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert sample.rejections == ()


def test_processes_are_on_their_instances(driver, source):
    processes = [on(3, 0, 10, 100), on(5, 1, 10, 200), on(5, 1, 11, 300)]
    driver.write(devices=node(), processes=processes)
    sample = source.sample(time.time())
    found = {(process.pid, process.device): process.used_bytes for process in sample.processes}
    assert found == {(10, FIRST): 100, (10, SECOND): 200, (11, SECOND): 300}
    assert sample.processes_known == {FIRST, SECOND}


def test_utilisation_by_process_is_not_asked_for(driver, source):
    driver.write(devices=node(), processes=[on(3, 0, 10)])
    sample = source.sample(time.time())
    assert (sample.utilization, sample.utilization_known) == ({}, frozenset())
    assert driver.calls()["nvmlDeviceGetProcessUtilization"] == 0


def test_a_process_on_an_unknown_instance_costs_only_its_own_place(driver, source):
    driver.write(devices=node(), processes=[on(3, 0, 10), on(4, 0, 11)])
    sample = source.sample(time.time())
    assert [process.pid for process in sample.processes] == [10]
    assert sample.processes_known == {gpu.uuid for gpu in sample.gpus if gpu.parent}
    assert [(process.pid, process.device) for process in sample.unplaced] == [(11, GPU)]
    (rejection,) = sample.rejections
    assert (rejection.object_name, rejection.reason) == (GPU, Reason.PROCESS_LIST_INVALID)
    assert "(4, 0)" in rejection.detail


def test_a_process_without_an_instance_is_on_the_gpu_and_nothing_is_refused(driver, source):
    display = Process(GPU, 900, type="G")
    driver.write(devices=node(), processes=[on(3, 0, 10), display])
    sample = source.sample(time.time())
    assert [process.pid for process in sample.processes] == [10]
    assert [(process.pid, process.graphics) for process in sample.unplaced] == [(900, True)]
    assert sample.rejections == ()


def test_without_the_right_to_see_all_instances_processes_are_not_known(driver, source):
    driver.write(devices=node(sees_all_instances=0), processes=[on(3, 0, 10)])
    sample = source.sample(time.time())
    assert sample.processes_known == frozenset()
    assert sample.rejections[0].reason == Reason.DRIVER_ERROR
    assert "NO_PERMISSION" in sample.rejections[0].detail


def test_instances_come_and_go_without_a_new_generation(driver, source):
    driver.write(devices=node())
    source.sample(time.time())
    third = mig_uuid(3)
    replaced = [Device(GPU, mig=1), Mig(GPU, third, gi=1, name="NVIDIA H100 MIG 3g.40gb")]
    driver.write(devices=replaced, processes=[on(1, 0, 10)])
    sample = source.sample(time.time())
    assert [gpu.uuid for gpu in sample.gpus] == [GPU, third]
    assert sample.gpus[1].info["mig_profile"] == "3g.40gb"
    assert sample.processes_known == {third}
    assert (sample.generation, sample.lost) == (1, ())


def test_what_an_instance_is_is_asked_again_at_slow_samples(driver, source):
    driver.write(devices=[Device(GPU, mig=1), Mig(GPU, FIRST, gi=1, name=b"\xff MIG 1g.10gb")])
    sample = source.sample(time.time())
    assert "mig_profile" not in sample.gpus[1].info
    assert sample.rejections[0].reason == Reason.DRIVER_ERROR
    driver.write(devices=[Device(GPU, mig=1), Mig(GPU, FIRST, gi=1)])
    for _ in range(3):
        sample = source.sample(time.time())
    assert sample.gpus[1].info["mig_profile"] == "1g.10gb"
    assert sample.rejections == ()


def test_switching_mig_off_and_on_asks_again_what_the_gpu_supports(driver, source):
    def utilization_of_the_gpu():
        for _ in range(2):
            sample = source.sample(time.time())
        return sample.gpus[0].readings.get(("utilization_ratio",)), sample.processes_known

    driver.write(devices=node(gpu_util=50))
    assert utilization_of_the_gpu() == (None, {FIRST, SECOND})
    driver.write(devices=[Device(GPU, gpu_util=50)])
    assert utilization_of_the_gpu() == (0.5, {GPU})
    driver.write(devices=node(gpu_util=50))
    assert utilization_of_the_gpu() == (None, {FIRST, SECOND})


def test_a_mig_mode_that_cannot_be_read_is_assumed_to_be_unchanged(driver, source):
    driver.write(devices=node(), processes=[on(3, 0, 10)])
    source.sample(time.time())
    fault = Fault("nvmlDeviceGetMigMode", 999)
    driver.write(devices=node(), processes=[on(3, 0, 10)], faults=[fault])
    sample = source.sample(time.time())
    assert [gpu.uuid for gpu in sample.gpus] == [GPU, FIRST, SECOND]
    assert ("mig_mode",) not in sample.gpus[0].readings
    assert [process.device for process in sample.processes] == [FIRST]


def test_a_gpu_with_mig_and_no_instance_has_no_processes(driver, source):
    driver.write(devices=[Device(GPU, mig=1)])
    sample = source.sample(time.time())
    assert [gpu.uuid for gpu in sample.gpus] == [GPU]
    assert sample.processes_known == frozenset()
    assert sample.rejections == ()


def test_a_failed_enumeration_costs_the_instances_of_its_gpu(driver, source):
    fault = Fault("nvmlDeviceGetMigDeviceHandleByIndex", 999, times=1)
    driver.write(devices=node(Device(uuid(9))), processes=[on(3, 0, 10)], faults=[fault])
    sample = source.sample(time.time())
    assert [gpu.uuid for gpu in sample.gpus] == [GPU, uuid(9)]
    assert sample.processes_known == {uuid(9)}
    assert sample.rejections[0].reason == Reason.DRIVER_ERROR
    assert len(source.sample(time.time()).gpus) == 4


def test_a_name_without_a_profile_is_no_profile(driver, source):
    driver.write(devices=[Device(GPU, mig=1), Mig(GPU, FIRST, gi=1, name="NVIDIA H100")])
    assert "mig_profile" not in source.sample(time.time()).gpus[1].info


def test_a_lost_gpu_takes_its_instances_along(driver, source):
    driver.write(devices=node(Device(uuid(9))))
    source.sample(time.time())
    driver.write(devices=node(Device(uuid(9)), lost=1))
    sample = source.sample(time.time())
    assert [gpu.uuid for gpu in sample.gpus] == [uuid(9)]
    assert sample.lost == (GPU,)
