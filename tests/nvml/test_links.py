"""How the driver reports links between GPUs."""

import time

import pytest

from tests.support.nvml_fake import Device, Fault, Link, uuid
from vgpu.model.reasons import Reason, SourceError

GPUS = [Device(uuid(0)), Device(uuid(1)), Device(uuid(2))]
LINKS = [Link(uuid(0), uuid(1), 10), Link(uuid(2), uuid(0), 40)]
CALL = "nvmlDeviceGetTopologyCommonAncestor"


def test_each_pair_of_gpus_has_its_level_by_uuid(driver, source):
    driver.write(devices=GPUS, links=LINKS)
    source.sample(time.time())
    assert source.links() == {
        (uuid(0), uuid(1)): 10,
        (uuid(0), uuid(2)): 40,
        (uuid(1), uuid(2)): 50,
    }


def test_only_those_who_ask_pay_for_it(driver, source):
    driver.write(devices=GPUS, links=LINKS)
    source.sample(time.time())
    assert driver.calls()[CALL] == 0
    source.links()
    assert driver.calls()[CALL] == 3


def test_before_the_first_sample_nothing_is_known(driver, source):
    driver.write(devices=GPUS)
    assert source.links() == {}


def test_a_pair_whose_link_cannot_be_read_is_missing(driver, source):
    faults = [Fault(CALL, code=999, device=uuid(1))]
    driver.write(devices=GPUS, links=LINKS, faults=faults)
    source.sample(time.time())
    assert source.links() == {(uuid(0), uuid(1)): 10, (uuid(0), uuid(2)): 40}


def test_nvlink_is_apart_from_the_level(driver, source):
    driver.write(devices=GPUS, links=[*LINKS, Link(uuid(1), uuid(2), nvlink=1)])
    source.sample(time.time())
    assert source.nvlinks() == {
        (uuid(0), uuid(1)): False,
        (uuid(0), uuid(2)): False,
        (uuid(1), uuid(2)): True,
    }
    driver.write(devices=GPUS, faults=[Fault("nvmlDeviceGetP2PStatus", code=13)])
    assert source.nvlinks() == {}


@pytest.mark.parametrize("code", [3, 13])  # not supported, function not found
def test_a_driver_without_the_call_reports_no_links(driver, source, code):
    driver.write(devices=GPUS, faults=[Fault(CALL, code=code)])
    source.sample(time.time())
    assert source.links() == {}


def test_a_driver_that_is_gone_is_an_error(driver, source):
    driver.write(devices=GPUS)
    source.sample(time.time())
    driver.unload()
    with pytest.raises(SourceError) as error:
        source.links()
    assert error.value.reason is Reason.DRIVER_NOT_LOADED
