"""How checks run: each has its time, what it started is ended, and its failure is its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.gpu_kit.__main__ import machine_names, run_checks
from deploy.gpu_kit.checks import Check
from deploy.gpu_kit.containers import Cgroups, Containers
from deploy.gpu_kit.deadline import Deadline, Interrupted, signals_interrupt
from deploy.gpu_kit.processes import KitError
from deploy.gpu_kit.result import Verdict, equal
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.sources.runtime import ProcessSource, read_live_pods

SLEEPER = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"]
PROGRAM_WITH_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
time.sleep(600)
"""
PARENT = [sys.executable, "-c", PROGRAM_WITH_A_CHILD, *SLEEPER]


def ran(kit, *checks, seconds=WAIT_SECONDS):
    results = []
    run_checks(checks, kit, Deadline(seconds), results)
    return {result.name: result for result in results}


def gone(pid):
    """Whether a process has ended: what nobody has waited for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_check_that_does_not_end_is_cut_off_and_keeps_its_results(kit):
    started = []

    def endless(kit):
        yield equal("endless/first", 1, 1)
        process = kit.processes.start(SLEEPER, kit.log)
        process.stdout.readline()
        started.append(process.pid)
        signal.raise_signal(signal.SIGALRM)  # its time is over
        yield equal("endless/never", 1, 1)

    def next_one(kit):
        yield equal("next", 1, 1)

    results = ran(kit, Check("endless", endless, WAIT_SECONDS), Check("next", next_one, 10))
    assert results["endless/first"].verdict is Verdict.PASSED
    assert "did not end in" in results["endless"].reason
    assert "endless/never" not in results
    assert results["next"].verdict is Verdict.PASSED
    (pid,) = started
    assert gone(pid)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KitError("nothing answers"), "nothing answers"),
        (OSError(2, "No such file"), "[Errno 2] No such file"),
        (ZeroDivisionError("0"), "unexpected error: ZeroDivisionError('0')"),
    ],
)
def test_the_error_of_a_check_is_its_failure_only(kit, error, reason):
    def broken(kit):
        yield equal("broken/first", 1, 1)
        raise error

    results = ran(kit, Check("broken", broken, 10), Check("next", lambda _: iter(()), 10))
    assert results["broken/first"].verdict is Verdict.PASSED
    assert (results["broken"].verdict, results["broken"].reason) == (Verdict.FAILED, reason)


def test_after_the_time_of_the_run_nothing_more_is_begun(kit):
    results = ran(kit, Check("late", lambda _: pytest.fail("begun"), 10), seconds=0)
    assert results["late"].verdict is Verdict.NOT_RUN


def test_a_program_is_ended_with_what_it_has_started(kit):
    process = kit.processes.start(PARENT, kit.log)
    child = int(process.stdout.readline())
    kit.processes.end(process)
    assert process.returncode is not None
    wait_until(lambda: gone(child), "the child ended, too")


def test_a_program_that_fails_is_one_line(kit):
    command = [sys.executable, "-c", "import sys; sys.exit('first\\nlast')"]
    with pytest.raises(KitError, match=r"ended with status 1: last$"):
        kit.processes.output(command, kit.log, seconds=WAIT_SECONDS)
    with pytest.raises(KitError, match=r"did not end in 0\.2 s"):
        kit.processes.output(SLEEPER, kit.log, seconds=0.2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_once(number):
    before = signal.getsignal(number)
    with signals_interrupt():
        with pytest.raises(Interrupted):
            signal.raise_signal(number)
        signal.raise_signal(number)  # what cleans up is not interrupted
    assert signal.getsignal(number) is before


def test_names_of_the_machine_that_no_result_may_have(kit):
    names = machine_names(kit.answers)
    assert names["1650223"] == "1650223000000"
    assert "host" in names.values()


def test_a_process_of_a_simulated_container_is_found_by_the_exporters_source(kit):
    folder = kit.new_folder("node")
    containers = Containers(folder, kit.answers.gpus, kit.gpu.uuid, 2, Cgroups.SIMULATED)
    with subprocess.Popen(SLEEPER, stdout=subprocess.PIPE) as process:
        containers.put(0, process.pid)
        containers.put_outside(os.getpid())
        flags = dict(flag.removeprefix("--").split("=") for flag in containers.flags())
        source = ProcessSource(flags["path.procfs"], flags["path.cgroupfs"], watch=False)
        owners = source.sample([process.pid, os.getpid()]).owners
        assert owners[os.getpid()] is None
        live = read_live_pods(flags["path.cgroupfs"])
        assert owners[process.pid].pod_uid in live
        assert len(live) == 2
        process.kill()
