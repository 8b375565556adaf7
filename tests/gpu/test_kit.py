"""The GPU kit end to end: on the fake driver, from an empty folder, without a network."""

import re
import signal
import socket
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from deploy.gpu_kit import exporter, report
from deploy.gpu_kit.answers import DriverAnswers, read, reading_name, restored
from deploy.gpu_kit.checks import CHECKS
from deploy.gpu_kit.driver_answers import answers as ask_driver
from deploy.gpu_kit.fake_state import differences, state_of
from deploy.gpu_kit.result import STATUS_NO_DRIVER, Verdict
from tests.gpu.gpu_machine import SERIAL, GpuMachine
from tests.support.environment import GOLDEN_FILES, ROOT
from tests.support.nvml_fake import FakeDriver
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.sources.nvml import NvmlBinding
from vgpu.sources.nvml_device import GRAPHICS, PROCESS_LISTS
from vgpu.sources.nvml_processes import merge
from vgpu.sources.nvml_queries import GPU_WITH_PCIE_THROUGHPUT, implausible

pytestmark = pytest.mark.slow

REAL = sorted(path for path in (GOLDEN_FILES / "real-driver").iterdir() if path.is_dir())
SAMPLE = Path("sample")
"""Stands for the results of a run in this session, which are no real ones."""

UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}", re.IGNORECASE)


@pytest.fixture
def open_folder():
    """A folder that any user may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def sample():
    """A quick run on the fake driver: (what it printed, its machine)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        machine = GpuMachine(Path(folder))
        yield machine.run("--quick", "--cgroups=simulated"), machine


def reported(folder):
    return msgspec.json.decode((folder / "report.json").read_bytes(), type=report.Report)


def own_processes(machine):
    """The processes whose environment names this machine's driver."""
    mark = f"NVML_FAKE_STATE={machine.driver.state}".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and mark in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
    return found


def test_a_run_on_the_fake_driver_is_green(sample):
    done, machine = sample
    assert done.returncode == 0, done.stdout + done.stderr
    found = reported(machine.results)
    assert [result for result in found.results if result.verdict is Verdict.FAILED] == []
    verdicts = Counter((result.name.partition("/")[0], result.verdict) for result in found.results)
    passed = {check.name for check in CHECKS if verdicts[check.name, Verdict.PASSED]}
    assert {check.name for check in CHECKS} - passed == {"hami-core", "cost"}
    assert (found.complete, found.quick, found.status) == (True, True, 0)


def test_what_was_not_run_has_its_reason(sample):
    _, machine = sample
    reasons = {
        result.name: result.reason
        for result in reported(machine.results).results
        if result.verdict is Verdict.NOT_RUN
    }
    assert all(reasons.values())
    assert "HAMI_CORE" in reasons["hami-core"]
    assert reasons["cost/median of a scrape"] == "a quick run measures no figures"
    # What nvidia-smi has no field for; and an exporter that is no root's may not read this Python.
    names = {name for name in reasons if name.startswith("exporter/")}
    assert names <= {"exporter/page of profile minimal"}


def test_the_run_records_what_decides_the_host_pids(sample):
    _, machine = sample
    facts = reported(machine.results).facts
    assert facts["kernel_module"] == "open"
    pids = facts["pids"]
    assert pids["ns_pid"] == [pids["host_pid"], pids["container_pid"]]
    assert pids["host_pid"] != pids["container_pid"]
    kinds = {key: value for key, value in pids.items() if key.endswith("side") and "_" in key}
    kinds.pop("memory_inside")
    assert kinds == {
        "processes_outside": "host",
        "utilisation_outside": "host",
        "processes_inside": "container",
        "utilisation_inside": "container",
    }


def test_the_comparison_with_nvidia_smi_runs(sample):
    _, machine = sample
    results = {result.name: result for result in reported(machine.results).results}
    for index in (0, 1):
        for name in ("memory_used_bytes", "power_usage_watts", "clock_hertz sm", "serial"):
            assert results[f"queries/{index}/{name}"].verdict is Verdict.PASSED
    absent = results["queries/0/fan_speed_ratio"]
    assert (absent.expected, absent.seen, absent.verdict) == ("absent", "absent", Verdict.PASSED)
    assert results["queries/0/energy_joules"].verdict is Verdict.NOT_RUN


def test_the_results_are_few_small_and_name_nobody(sample):
    _, machine = sample
    files = sorted(machine.results.iterdir())
    assert {file.name for file in files} >= {
        "report.json",
        "report.txt",
        "timings.json",
        "driver.json",
        "page-standard.prom",
        "page-full.prom",
        "programs.log",
    }
    assert len(files) <= report.MOST_FILES
    assert sum(file.stat().st_size for file in files) <= report.MOST_BYTES
    texts = {file.name: file.read_text() for file in files}
    for name, text in texts.items():
        assert SERIAL not in text, name
        assert re.search(rf"(?<![\w.-]){re.escape(socket.gethostname())}(?![\w.-])", text) is None
    uuids = {found for text in texts.values() for found in UUID.findall(text)}
    assert uuids <= {f"GPU-00000000-0000-4000-8000-{number:012x}" for number in range(2)}


def test_a_run_leaves_nothing_behind(sample):
    _, machine = sample
    assert own_processes(machine) == {}
    assert list(machine.empty.iterdir()) == []


def test_without_a_driver_there_is_one_line_and_status_3(open_folder):
    machine = GpuMachine(open_folder)
    machine.driver.unload()
    done = machine.run("--quick")
    assert done.returncode == STATUS_NO_DRIVER
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line == "no GPU to test: no driver answers: nvmlInit: DRIVER_NOT_LOADED (9)"
    assert not machine.results.exists()


def test_an_interrupted_run_ends_all_its_programs_and_keeps_what_it_has(open_folder):
    machine = GpuMachine(open_folder)
    with subprocess.Popen(
        machine.command("--quick", "--cgroups=simulated"),
        cwd=machine.empty,
        env=machine.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        # Those of the exporter's check: by then other checks have their results.
        wait_until(lambda: len(list(machine.clients.glob("*"))) > 4, "several loads run")
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == 130
        assert "interrupted" in process.stderr.read()
    assert own_processes(machine) == {}
    found = reported(machine.results)
    assert (found.complete, found.status) == (False, 130)
    assert found.results[0].name.startswith("pids/")


# ---------------------------------------------------------------- results as golden files


@pytest.fixture(params=[*REAL, SAMPLE], ids=lambda path: path.name)
def results(request):
    """A folder of results: each that a real driver gave, and the one of this session."""
    if request.param is SAMPLE:
        return request.getfixturevalue("sample")[1].results
    return request.param


@pytest.fixture
def recorded(results):
    return msgspec.json.decode((results / "driver.json").read_bytes(), type=DriverAnswers)


def table():
    """The queries of our table by call and arguments, fallbacks included."""
    tables = GPU_WITH_PCIE_THROUGHPUT
    queries = [*tables.fast, *tables.slow, *tables.rare]
    queries += [query.otherwise for query in queries if query.otherwise]
    return {(query.call, query.args): query for query in queries}


def test_each_recorded_answer_is_read_as_it_was(recorded):
    queries = table()
    assert recorded.gpus
    for gpu in recorded.gpus:
        assert {(answer.call, tuple(answer.args)) for answer in gpu.queries} <= queries.keys()
        assert gpu.readings()
        for answer in gpu.queries:
            query = queries[answer.call, tuple(answer.args)]
            if not answer.error:
                assert read(query, restored(answer.answer)) == answer.readings, answer.key


def test_no_recorded_reading_is_implausible(recorded):
    keys = {reading_name(key): key for query in table().values() for key in query.parts}
    for gpu in recorded.gpus:
        assert implausible({keys[name]: value for name, value in gpu.readings().items()}) == {}


def test_the_recorded_process_lists_are_valid(recorded):
    for gpu in recorded.gpus:
        lists = [
            (answer.call == GRAPHICS, answer.entries)
            for answer in gpu.lists
            if answer.call in PROCESS_LISTS
        ]
        merged = merge(lists, gpu.uuid, None, gpu.readings()["memory_total_bytes"])
        listed = {entry[0] for _, entries in lists for entry in entries}
        assert {process.pid for process in merged.processes} == listed


def test_the_fake_driver_answers_like_the_recorded_one(recorded, tmp_path, monkeypatch):
    fake = FakeDriver(tmp_path)
    fake.state.write_text(state_of(recorded))
    fake.load(monkeypatch)
    assert differences(recorded, ask_driver(NvmlBinding(), 0, ())) == []


def test_the_recorded_pages_are_pages(results):
    pages = sorted(results.glob("page-*.prom"))
    assert {page.stem for page in pages} >= {"page-standard", "page-full"}
    for page in pages:
        read_page = exporter.parse(page.read_text())
        assert read_page.value("vgpu_collector_success", collector="nvml") == 1
        assert read_page.values("vgpu_gpu_memory_total_bytes")


def test_a_recorded_run_was_complete_and_failed_nowhere(results):
    found = reported(results)
    assert found.complete
    assert found.results
    assert [result for result in found.results if result.verdict is Verdict.FAILED] == []


def test_real_results_are_named_after_their_gpu_and_in_the_docs():
    rows = (ROOT / "docs" / "tested.md").read_text()
    for folder in REAL:
        found = reported(folder)
        assert (folder.name, found.quick) == (report.folder_name(found), False)
        assert f"| {found.model} | {found.driver} |" in rows
        assert len(list(folder.iterdir())) <= report.MOST_FILES
