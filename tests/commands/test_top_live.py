"""`vgpu top` in a real terminal: keys, resizing, signals, and exporters that come and go."""

import os
import re
import signal
import socket
import subprocess
import sys
from itertools import pairwise

import pytest
from click.testing import CliRunner

from tests.e2e.running_demo import COMMAND, RunningDemo
from tests.support.environment import own_loopback
from tests.support.nvml_fake import Device, FakeDriver, Fault, uuid
from tests.support.terminal import Terminal
from vgpu.program.termination import USER_DEFINED
from vgpucli.top.command import command

pytestmark = pytest.mark.slow  # frames, keys and answers without a terminal are in the other files

TOP = (
    sys.executable,
    "-c",
    "from vgpucli.top.command import command; command(prog_name='vgpu top')",
)
HERE = (*TOP, "--simulate", "--interval=100ms")
LEAVE = b"\x1b[0m\x1b[?25h\x1b[?1049l"


@pytest.fixture
def top():
    """`vgpu top` on a simulated node of its own, in 80 columns and 24 lines."""
    with Terminal(HERE) as terminal:
        terminal.wait_for("sorted by name")
        terminal.wait_for("trainer")
        yield terminal


def names(lines):
    """The first words of the pods on the first GPU, from top to bottom."""
    found = []
    for line in lines[4:]:
        if line.startswith(" GPU 1"):
            break
        if pod := re.match(r"[> !] [a-z]+/([a-z]+)-", line):
            found.append(pod[1])
    return found


def gone(terminal):
    """Whether the terminal is as it was: modes, cursor, and the screen of before."""
    return terminal.now() == terminal.modes and terminal.written.endswith(LEAVE)


def test_gpus_and_containers_fill_the_screen(top):
    lines = top.lines
    assert lines[0].startswith(" vgpu top  gpu-node-1, sampled directly")
    assert lines[1].startswith(" 2 GPUs, 10 shares")
    assert lines[3].startswith(" GPU 0  NVIDIA A10   GPU-5a1c7e3b")
    assert any(line.startswith("> research/finetune-0/trainer ") for line in lines)
    assert lines[23].startswith(" h help  q quit   sorted by name")


def test_sort_keys_sort_the_containers_of_each_gpu(top):
    assert names(top.lines) == ["finetune", "notebook", "notebook", "whisper", "detector"]
    top.type("m")
    by_memory = names(top.wait_for("sorted by memory used"))
    assert by_memory[0] == "finetune"
    assert by_memory[-2:] == ["notebook", "notebook"]
    top.type("l")
    assert names(top.wait_for("sorted by memory limit"))[:2] == ["finetune", "detector"]
    top.type("u")
    top.wait_for("sorted by utilisation")
    top.type("n")
    top.wait_for("sorted by name")


def test_help_takes_a_line_more_and_goes_again(top):
    top.type("h")
    assert top.wait_for("PgUp PgDn")[21].startswith(" sort: n name")
    top.type("h")
    top.wait_for("sorted by name")


def test_p_shows_the_processes_of_each_container_and_hides_them(top):
    top.type("p")
    lines = top.wait_for("pid 1180907")
    assert "trainer" in next(before for before, line in pairwise(lines) if "1180907" in line)
    assert lines[1].startswith(" 2 GPUs, 10 shares, 10 processes")
    top.type("p")
    top.wait_for(lambda lines: not any("pid" in line for line in lines))


def test_a_filter_that_comes_at_once_is_no_keys(top):
    """Over a slow connection, or from the clipboard; m and l would sort, q would quit."""
    top.type("/vllm")
    top.wait_for("/vllm_")
    top.type("q\x7f\r")
    top.wait_for("/vllm   / changes it")
    top.type("/q")
    top.wait_for("/vllmq_")
    top.process.send_signal(signal.SIGINT)  # ends the filter, and not the program
    top.wait_for("sorted by name")


def test_it_fits_itself_to_the_window(top):
    top.resize(140, 40)
    lines = top.wait_for(lambda lines: lines[39].startswith(" h help"))
    assert "of GPU" in lines[2]
    assert any("research/finetune-0/trainer" in line for line in lines)
    assert re.search(r"\d\d:\d\d:\d\d $", lines[0])
    top.resize(60, 10)
    lines = top.wait_for(lambda lines: len(lines) == 10 and "of 16" in lines[9])
    assert "1–6 of 16" in lines[9]


def test_arrows_and_pages_scroll_what_does_not_fit(top):
    top.resize(80, 10)
    top.wait_for("1–6 of 16")
    top.type("\x1b[B\x1bOB")
    top.wait_for("3–8 of 16")
    top.type("\x1b[6~")
    top.wait_for("9–14 of 16")
    top.type("\x1b[F")
    top.wait_for("11–16 of 16")
    top.type("\x1b[A")
    top.wait_for("10–15 of 16")
    top.type("\x1b[H")
    lines = top.wait_for("1–6 of 16")
    assert lines[3].startswith(" GPU 0")


def test_q_quits_and_leaves_the_terminal_as_it_was(top):
    assert top.now() != top.modes  # keys without Enter
    top.type("q")
    assert top.status() == 0
    assert gone(top)


def test_control_c_is_a_way_out_too(top):
    top.type("\x03")
    assert top.status() == 0
    assert gone(top)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_the_terminal_as_it_was(top, number):
    top.process.send_signal(number)
    assert top.status() == 128 + number
    assert gone(top)


@pytest.mark.parametrize("number", USER_DEFINED)
def test_a_signal_that_asks_for_nothing_does_nothing(top, number):
    top.process.send_signal(number)
    top.type("q")
    assert top.status() == 0
    assert gone(top)


def test_a_defect_leaves_the_terminal_as_it_was_before_its_traceback():
    crash = (
        "from vgpucli.top import command, session\n"
        "session.frame = lambda *_, **__: 1 / 0\n"
        "command.command(['--simulate'])"
    )
    with Terminal([sys.executable, "-c", crash]) as terminal:
        assert terminal.status() == 1
        _, _, after = terminal.written.partition(LEAVE)
        assert b"ZeroDivisionError" in after
        assert terminal.now() == terminal.modes


def test_control_z_gives_the_terminal_back_until_it_is_continued(top):
    top.type("\x1a")
    top.wait_for_written(LEAVE)
    assert os.waitpid(top.process.pid, os.WUNTRACED)[1] & 0xFF == 0x7F  # stopped
    assert gone(top)
    top.process.send_signal(signal.SIGCONT)
    top.screen.reset()
    top.wait_for("sorted by name")
    top.type("q")
    assert top.status() == 0


def test_it_never_clears_the_screen_while_it_runs(top):
    top.type("mhunhl")
    top.wait_for("sorted by memory limit")
    assert top.written.count(b"\x1b[2J") == 1


def test_a_driver_that_hangs_holds_back_neither_the_keys_nor_the_end(tmp_path):
    driver = FakeDriver(tmp_path)
    hang = Fault("nvmlDeviceGetCount_v2", delay_ms=600_000)
    driver.write(devices=[Device(uuid(0))], faults=[hang])
    alone = (
        "from vgpucli.top import command, session; "
        "session.LOCAL = 'http://127.0.0.1:9'; command.command()"
    )
    arguments = [sys.executable, "-c", alone, "--sample.timeout=300ms", "--interval=200ms"]
    with Terminal(arguments, **driver.env()) as terminal:
        terminal.wait_for("nvml (timeout)")
        terminal.wait_for("the driver is overdue by")
        terminal.type("h")
        terminal.wait_for("sort: n name")
        terminal.type("q")
        assert terminal.status() == 0
        assert gone(terminal)


# ---------------------------------------------------------------- a real exporter


def test_an_exporter_that_stops_leaves_its_page_and_is_found_again(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    listen = f"--web.listen-address={own_loopback()}"
    with RunningDemo(first, (*COMMAND, f"{listen}:0")) as demo:
        port = demo.url.rpartition(":")[2]
        with Terminal([*TOP, f"--url={demo.url}", "--interval=200ms"]) as terminal:
            terminal.wait_for("> research/finetune-0/trainer")
            demo.interrupt()
            lines = terminal.wait_for("connection refused - below is the last page")
            assert "NO ANSWER for" in lines[1]
            assert any(line.startswith("> research/finetune-0/trainer") for line in lines)
            terminal.type("m")  # keys work all the same
            terminal.wait_for("sorted by memory used")
            with RunningDemo(second, (*COMMAND, f"{listen}:{port}")):
                terminal.wait_for("3 GPUs, 13 shares")
                terminal.type("q")
                assert terminal.status() == 0


def test_one_frame_in_a_pipe_has_no_escape_codes(tmp_path):
    with RunningDemo(tmp_path) as demo:
        arguments = [*TOP, "--once", "--processes", f"--url={demo.url}"]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60)
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f" vgpu top  {demo.url}")
    assert max(map(len, lines)) <= 80
    assert "> research/finetune-0/trainer " in done.stdout
    assert "    pid 1180907 " in done.stdout


def test_the_exporter_on_this_node_is_asked_before_the_node_itself(tmp_path):
    with RunningDemo(tmp_path) as demo:
        local = (
            "from vgpucli.top import command, session; "
            f"session.LOCAL = {demo.url!r}; command.command()"
        )
        arguments = [sys.executable, "-c", local, "--once"]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith(f" vgpu top  {demo.url} ")


def test_a_path_of_this_node_is_sampled_and_the_exporter_on_it_is_not_asked(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as never_asked:
        url = f"http://127.0.0.1:{never_asked.getsockname()[1]}"
        local = (
            f"from vgpucli.top import command, session; session.LOCAL = {url!r}; command.command()"
        )
        arguments = [sys.executable, "-c", local, "--once", f"--shim.root={tmp_path}"]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
        never_asked.setblocking(False)
        with pytest.raises(BlockingIOError):
            never_asked.accept()
    assert ", sampled directly " in done.stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ca-file=ca.pem"], "--ca-file: needs --url"),
        (["--url=http://host", "--simulate"], "--simulate and --url: choose one"),
        (["--url=http://host", "--pods=/x"], "--pods: for this node, without --url"),
        (["--url=ftp://host"], "give http://HOST:PORT"),
        (["--simulate", "--pods=/x"], "--pods: --simulate brings its own node"),
    ],
)
def test_flags_that_cannot_work_are_refused(flags, words):
    result = CliRunner().invoke(command, ["--once", *flags])
    assert result.exit_code == 2
    assert words in result.stderr


def test_one_frame_without_data_is_an_error_with_its_reason(tmp_path):
    arguments = [*TOP, "--once", "--url=http://127.0.0.1:9"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: http://127.0.0.1:9: connection refused\n"


def test_without_a_terminal_it_asks_for_once():
    done = subprocess.run(HERE, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "add --once" in done.stderr
