"""The limits of MPS, from the log of the control daemon that NVIDIA's device plugin starts.

The lines are those of NVIDIA's manual of MPS ("Log files"); commands and folders are those of
k8s-device-plugin 0.15 to 0.20 (``cmd/mps-control-daemon/mps``).
"""

import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vgpu.model.facts import MpsLimits
from vgpu.model.reasons import Reason
from vgpu.model.units import GIB, MIB
from vgpu.schemes.nvidia.mps import MpsControl, client_limits
from vgpu.sources.limits import LimitSource
from vgpu.sources.mps import PART_BYTES

RESOURCE = "nvidia.com/gpu.shared"


def line(text):
    return f"[2024-06-12 10:28:13.725 Control    69] {text}\n"


START = line("Starting control daemon using socket /mps/nvidia.com/gpu/pipe/control")


def commands(*limits, percent=25):
    texts = [
        "NEW UI",
        *(f"Cmd:set_default_device_pinned_mem_limit {at} {size}" for at, size in limits),
        "UI closed",
        "NEW UI",
        f"Cmd:set_default_active_thread_percentage {percent}",
        f"{percent}.0",
        "UI closed",
    ]
    return "".join(map(line, texts))


SET = START + commands((0, "4606M"), (1, "20G"))


def read(text):
    return MpsControl().after(text.encode())


def test_the_limits_of_each_gpu_and_of_the_threads():
    assert read(SET) == MpsControl({0: 4606 * MIB, 1: 20 * GIB}, 25)


def test_the_last_command_of_a_gpu_wins():
    assert read(SET + commands((0, "1M"), percent=50)) == MpsControl({0: MIB, 1: 20 * GIB}, 50)


def test_a_start_forgets_what_was_before():
    assert read(SET + START) == MpsControl()


def test_servers_come_and_go():
    served = SET + line("NEW SERVER 4711: Ready") + line("NEW SERVER 4712: Ready")
    assert read(served).servers == {4711, 4712}
    assert read(served + line("Server 4711 exited with status 0")).servers == {4712}


@pytest.mark.parametrize(
    "text",
    [
        "Cmd:set_default_device_pinned_mem_limit 0 4606M\n",
        line("NEW CLIENT 17 from user 0: Cmd:set_default_device_pinned_mem_limit 0 1M"),
        line("Cmd:set_default_device_pinned_mem_limit 0 many"),
        line("Cmd:set_default_device_pinned_mem_limit 0 4606M and more"),
        line("Cmd:set_active_thread_percentage 4711 10"),
        line("Cmd:set_default_active_thread_percentage -1"),
    ],
)
def test_a_line_of_another_form_sets_nothing(text):
    assert read(text) == MpsControl()


@given(st.binary(max_size=300), st.integers(0, 300))
@example(SET.encode(), 120)
def test_any_bytes_are_read_alike_in_parts_of_whole_lines(text, near):
    cut = text.rfind(b"\n", 0, near) + 1
    assert MpsControl().after(text) == MpsControl().after(text[:cut]).after(text[cut:])


# ---------------------------------------------------------------- on disk


class Daemon:
    """The files of a control daemon, as the plugin's container has them."""

    def __init__(self, root, resource=RESOURCE):
        self.folder = root / resource
        self.log = self.folder / "log" / "control.log"
        self.log.parent.mkdir(parents=True)
        (self.folder / "pipe").mkdir()

    def write(self, text):
        with self.log.open("a") as file:
            file.write(text)
        return self

    def started(self):
        (self.folder / ".started").touch()
        return self


@pytest.fixture
def root(tmp_path):
    (tmp_path / "shm").mkdir()
    return tmp_path


def source(root):
    return LimitSource({"gaia": "", "kubeshare": ""}, mps=str(root))


def test_the_limits_of_a_daemon_that_has_started(root):
    Daemon(root).write(SET).started()
    sample = source(root).sample()
    assert sample.mps == (MpsLimits(RESOURCE, {0: 4606 * MIB, 1: 20 * GIB}, 25),)
    assert sample.rejections == ()


def test_no_limits_are_read_before_they_are_set_or_after_an_orderly_stop(root):
    daemon, limits = Daemon(root).write(SET), source(root)
    assert limits.sample().mps == ()
    daemon.started()
    assert limits.sample().mps != ()
    (daemon.folder / ".started").unlink()
    assert limits.sample().mps == ()


def test_what_is_added_is_read_and_a_line_that_is_not_whole_waits(root):
    daemon, limits = Daemon(root).started().write(START), source(root)
    assert limits.sample().mps == (MpsLimits(RESOURCE, {}),)
    whole = line("Cmd:set_default_device_pinned_mem_limit 0 4606M")
    daemon.write(whole[:-4])
    assert limits.sample().mps == (MpsLimits(RESOURCE, {}),)
    daemon.write(whole[-4:])
    assert limits.sample().mps == (MpsLimits(RESOURCE, {0: 4606 * MIB}),)


@pytest.mark.parametrize("replaced", [True, False], ids=["another file", "the same file"])
def test_a_log_that_was_begun_again_is_read_from_its_beginning(root, replaced):
    daemon, limits = Daemon(root).started().write(SET), source(root)
    limits.sample()
    if replaced:
        new = daemon.log.with_suffix(".new")
        new.write_text(START)
        new.replace(daemon.log)
    else:
        daemon.log.write_text(START)
    assert limits.sample().mps == (MpsLimits(RESOURCE, {}),)


def test_a_long_log_has_no_limits_until_all_of_it_is_read(root):
    """A daemon that started again has them at the end."""
    filler = line("NEW CLIENT 17 from user 0: Server already exists")
    daemon = Daemon(root).started().write(SET + filler * (PART_BYTES // len(filler) + 1))
    daemon.write(START + commands((0, "1M")))
    limits = source(root)
    assert limits.sample().mps == ()
    assert limits.sample().mps == (MpsLimits(RESOURCE, {0: MIB}, 25),)


def test_a_line_without_an_end_does_not_stop_the_reading(root):
    Daemon(root).started().write("x" * (2 * PART_BYTES) + "\n" + SET)
    limits = source(root)
    for _ in range(3):
        sample = limits.sample()
    assert sample.mps[0].memory_bytes == {0: 4606 * MIB, 1: 20 * GIB}


def test_what_clients_can_write_is_not_read(root):
    forged = Daemon(root, "shm/gpu").started().write(SET)
    assert source(root).sample().mps == ()
    daemon = Daemon(root).started()
    daemon.log.symlink_to(forged.log)
    sample = source(root).sample()
    assert sample.mps == ()
    assert [refused.reason for refused in sample.rejections] == [Reason.NOT_REGULAR_FILE]


def test_a_pipe_in_place_of_the_log_does_not_block(root):
    os.mkfifo(Daemon(root).started().log)
    (refused,) = source(root).sample().rejections
    assert refused.reason is Reason.NOT_REGULAR_FILE


def test_a_node_without_mps_has_no_limits_and_no_rejections(tmp_path):
    for root in (tmp_path, tmp_path / "absent"):
        sample = source(root).sample()
        assert (sample.mps, sample.rejections) == ((), ())


# ---------------------------------------------------------------- what a client sets for itself


@pytest.mark.parametrize(
    ("variables", "memory", "threads"),
    [
        ([], {}, None),
        (["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G,1=512M"], {0: GIB, 1: 512 * MIB}, None),
        (["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2GB , 1=x"], {0: 2 * GIB}, None),
        (["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2"], {}, None),  # without a unit
        (["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"], {}, 50),
        (["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=12.5"], {}, 12),
        (["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=0"], {}, None),
        (["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=101"], {}, None),
        (["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=9"], {}, 20),
        (["XCUDA_MPS_ACTIVE_THREAD_PERCENTAGE=9", "CUDA_MPS_"], {}, None),
    ],
)
def test_a_client_lowers_its_limits_by_two_variables(variables, memory, threads):
    environ = b"".join(f"{text}\0".encode() for text in ("PATH=/bin", *variables))
    limits = client_limits(environ)
    assert (limits.memory_bytes, limits.thread_percent) == (memory, threads)


@given(st.binary() | st.binary().map(lambda rest: b"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" + rest))
def test_any_environment_has_limits_or_none(environ):
    limits = client_limits(environ)
    assert all(amount >= 0 for amount in limits.memory_bytes.values())
    assert limits.thread_percent is None or 0 < limits.thread_percent <= 100
