"""`vgpu topology`: gpu-manager's texts for a node: from its driver, a matrix, or simulated."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import grpc
import msgspec
import pytest
from click.testing import CliRunner
from google.protobuf.empty_pb2 import Empty

from exporter.allocations import allocation_totals
from exporter.sampler import codecs
from exporter.view import ExporterView
from tests.support.live import parse
from tests.support.nvml_fake import Device, FakeDriver, Fault, Link, Process, uuid
from tests.support.usage import usage_of
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.ledger import Evidence, Statement, merge
from vgpu.ledger.container_usage import ShareUsage
from vgpu.ledger.from_node import devices_of
from vgpu.model.allocation import Share
from vgpu.model.facts import (
    ContainerName,
    Gpu,
    GpuProcess,
    GpuSample,
    KubeletSample,
    ProcessOwner,
    ProcessSample,
)
from vgpu.model.names import PodRef, Scheme, Source
from vgpu.model.objects import Container, Pod
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.topology import LinkLevel, parse_matrix
from vgpu.model.units import GIB
from vgpu.rpc import display_pb2 as pb
from vgpu.sources.collector import CollectorRow
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.observation import Observation
from vgpu.sources.pods import pod_sample
from vgpucli.topology.command import Display, command
from vgpucli.topology.messages import graph_text, usages, usages_text
from vgpucli.topology.state import (
    by_links,
    by_matrix,
    state_of,
    unknown,
    unknown_nvlinks,
    whole_gpus,
    with_nvlink,
)

PROGRAM = (
    sys.executable,
    "-c",
    "from vgpucli.topology.command import command; command(prog_name='vgpu topology')",
)
NEAR = """\
        GPU0    GPU1    NIC0    CPU Affinity
GPU0     X      PIX     SYS     0-15
GPU1    PIX      X      SYS     0-15
"""
NODE = "node"

POOL = (("grpc.use_local_subchannel_pool", 1),)
"""The library's own pool remembers for a while that a path refused."""


def make_gpu(number, parent="", **info):
    return Gpu(
        f"GPU-{number}",
        number,
        {"pci_bus_id": f"0000:{number}B:00.0", **info},
        {("memory_total_bytes",): 16 * GIB, ("memory_used_bytes",): GIB},
        parent,
    )


def given(
    pod, device, memory=None, cores=None, *, container="main", scheme=Scheme.VOLCANO, **fields
):
    """One source's statement: the container has this share of the device."""
    ref = PodRef(f"uid-{pod}", "ml", pod)
    share = Share(device, memory, cores)
    whole = Statement(Source.CHECKPOINT, ref, container, (share,), scheme)
    return msgspec.structs.replace(whole, **fields)


def used(pod, device, container="main", **known):
    """What the container uses of the device."""
    return ShareUsage(device, PodRef(f"uid-{pod}", "ml", pod), container, **known)


def view(*statements, uses=(), gpu=None, collectors=()):
    """A sample whose ledger is made of the statements, all of living pods."""
    ledger = merge(
        Evidence(
            devices=tuple(devices_of((gpu or TWO).gpus)),
            statements=statements,
            live_pods=frozenset(statement.pod.uid for statement in statements),
        )
    )
    seen = usage_of(*uses)
    return ExporterView(
        0.0, NODE, 15.0, seen, collectors, {}, (), {}, {}, allocations=allocation_totals(ledger)
    )


TWO = GpuSample((make_gpu(1), make_gpu(0)))


def drawn(seen, gpu=TWO, between=lambda *_: LinkLevel.PIX):
    return graph_text(state_of(seen, gpu, None, None, between))


def gpu_line(text, number):
    line = next(line for line in text.splitlines() if f"GPU{number} (" in line)
    return {name: int(value) for name, value in re.findall(r"(\w+): (\d+)", line)}


# ---------------------------------------------------------------- the state


def test_gpus_that_nobody_has_are_available_and_those_with_a_share_are_not():
    text = drawn(view(given("a", "GPU-1", 4 * GIB, 300)))
    assert text.startswith("ROOT:1\n|---PIX (aval: 1, ")
    assert gpu_line(text, 1)["allocatableCores"] == 70
    assert gpu_line(text, 1)["allocatableMemory"] == 12 * GIB
    assert gpu_line(text, 0)["allocatableCores"] == 100


def test_a_share_known_only_by_its_pods_annotation_is_drawn():
    annotations = {
        "volcano.sh/vgpu-node": NODE,
        "volcano.sh/vgpu-ids-new": "GPU-1,NVIDIA,4,30:",
        "volcano.sh/devices-to-allocate": "GPU-1,NVIDIA,4,30:",
        "volcano.sh/bind-phase": "allocating",
    }
    limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 4}
    waiting = Pod(
        PodRef("uid-a", "ml", "a"),
        node=NODE,
        annotations=annotations,
        containers=(Container("main", limits),),
        phase="Pending",
    )
    seen = Observation(gpu=TWO, pods=pod_sample([waiting], complete=True))
    builder = LedgerBuilder(codecs(None, GIB), NODE)
    ledger = builder.ledger(seen)
    usage = builder.usage(seen)
    assert not usage.shares  # nothing on the node knows of it yet
    promised = msgspec.structs.replace(view(), usage=usage, allocations=allocation_totals(ledger))
    text = drawn(promised)
    assert text.startswith("ROOT:1\n")
    assert gpu_line(text, 1)["allocatableCores"] == 70
    assert gpu_line(text, 1)["allocatableMemory"] == 12 * GIB
    usage = usages(state_of(promised, TWO, None, None, lambda *_: None)).usage["uid-a"]
    assert (usage.project, usage.spec["main"].gpu, usage.spec["main"].mem) == ("ml", 0.3, 4096)
    assert [one.card_idx for one in usage.stat["main"].dev] == ["1"]
    assert list(unknown(promised, TWO, lambda *_: LinkLevel.PIX)) == []


def test_cores_and_memory_are_taken_apart_from_one_another():
    halves = [given(pod, "GPU-0", 4 * GIB, 500) for pod in "ab"]
    line = gpu_line(drawn(view(*halves)), 0)
    assert (line["allocatableCores"], line["allocatableMemory"]) == (0, 8 * GIB)


def test_who_has_all_cores_has_all_memory():
    line = gpu_line(drawn(view(given("a", "GPU-0", 4 * GIB, 1000))), 0)
    assert (line["allocatableCores"], line["allocatableMemory"]) == (0, 0)


def test_a_scheme_without_cores_promises_none_and_a_whole_gpu_is_whole():
    part = given("a", "GPU-0", GIB, scheme=Scheme.GPUSHARE)
    assert gpu_line(drawn(view(part)), 0)["allocatableCores"] == 100
    whole = gpu_line(drawn(view(given("a", "GPU-0", cores=1000, scheme=Scheme.NONE))), 0)
    assert (whole["allocatableCores"], whole["allocatableMemory"]) == (0, 0)


def test_memory_without_a_limit_or_with_an_unknown_one_is_all_taken():
    for uses in ([used("a", "GPU-0", unlimited=True)], []):
        text = drawn(view(given("a", "GPU-0"), uses=uses))
        assert gpu_line(text, 0)["allocatableMemory"] == 0


def test_processes_that_were_promised_nothing_take_nothing():
    squatter = given("a", "GPU-0", source=Source.PROCESS, scheme=Scheme.NONE, alive=True)
    seen = view(squatter, uses=[used("a", "GPU-0", used_bytes=GIB)])
    assert drawn(seen).startswith("ROOT:2\n")
    (usage,) = usages(state_of(seen, TWO, None, None, lambda *_: None)).usage.values()
    assert (usage.spec["main"].gpu, usage.stat["main"].dev[0].mem) == (0, 1024)


def test_a_share_of_an_instance_is_held_on_its_gpu():
    instance = Gpu("MIG-7", 0, {}, {("memory_total_bytes",): 5 * GIB}, "GPU-0")
    gpu = GpuSample((make_gpu(0), instance))
    seen = view(given("a", "MIG-7", GIB, 1000), gpu=gpu)
    state = state_of(seen, gpu, None, None, lambda *_: None)
    assert len(state.tree.gpus) == 1
    assert state.tree.gpus[0].free_bytes == 11 * GIB
    assert usages(state).usage["uid-a"].stat["main"].dev[0].card_idx == "0"


def test_usage_names_each_containers_gpus_pids_and_request():
    seen = view(
        msgspec.structs.replace(
            given("a", "GPU-0", scheme=Scheme.GAIA),
            shares=tuple(Share(f"GPU-{n}", 4 * GIB, 500) for n in (0, 1)),
        ),
        given("b", "GPU-1"),
        given("c", "GPU-1", scheme=Scheme.GPUSHARE),
        uses=[
            used("a", "GPU-0", used_bytes=GIB, sm_utilization=0.37),
            used("b", "GPU-1", unlimited=True),
        ],
    )
    owner = ProcessOwner("c" * 64, "uid-a", "containerd")
    gpu = GpuSample(TWO.gpus, processes=(GpuProcess(9, "GPU-0", GIB), GpuProcess(7, "GPU-0", 1)))
    process = ProcessSample({9: owner, 7: None}, sees_host=True, live_pods=None)
    kubelet = KubeletSample({}, {"c" * 64: ContainerName("ml", "a", "main", "uid-a")})
    state = state_of(seen, gpu, process, kubelet, lambda *_: None)
    usage_by_pod = usages(state).usage
    first, second = usage_by_pod["uid-a"].stat["main"].dev
    assert (first.id, first.card_idx, first.gpu, first.mem, first.pids, first.device_mem) == (
        "0000:0B:00.0", "0", 37, 1024, (9,), 16384
    )  # fmt: skip
    assert (second.card_idx, second.pids) == ("1", ())
    assert (usage_by_pod["uid-a"].spec["main"].gpu, usage_by_pod["uid-a"].spec["main"].mem) == (
        1,
        8192,
    )
    assert usage_by_pod["uid-b"].spec["main"].mem == 16384  # all of its GPU
    assert usage_by_pod["uid-c"].spec["main"].mem == 0  # not known, so left out
    assert state.tree.gpus[0].pids == (7, 9)


def test_without_a_ledger_nothing_is_drawn_as_free():
    blind = msgspec.structs.replace(view(), allocations=None)
    with pytest.raises(SourceError, match="ledger"):
        drawn(blind)


def test_gpu_manager_names_a_gpu_by_its_minor_number():
    gpu = GpuSample((make_gpu(0, minor="3"), make_gpu(1)))
    gpus = state_of(view(), gpu, None, None, lambda *_: None).tree.gpus
    assert [one.minor for one in gpus] == [3, None]


# ---------------------------------------------------------------- how they are joined


def test_the_drivers_levels_are_those_of_the_tree():
    between = by_links({("GPU-0", "GPU-1"): 30})
    assert between(make_gpu(0), make_gpu(1)) is LinkLevel.PHB
    assert between(make_gpu(1), make_gpu(2)) is None
    assert by_links({("GPU-0", "GPU-1"): 35})(make_gpu(0), make_gpu(1)) is None


def test_nvlink_is_nearer_than_any_pcie_link_and_not_in_the_drawing():
    gpu = GpuSample(tuple(make_gpu(number) for number in range(4)))
    pcie = by_links({("GPU-0", "GPU-1"): 10, ("GPU-2", "GPU-3"): 10})
    nearest = with_nvlink(pcie, {("GPU-0", "GPU-2"): True, ("GPU-0", "GPU-1"): False})
    state = state_of(view(gpu=gpu), gpu, None, None, pcie, nearest=nearest)
    assert graph_text(state) == drawn(view(gpu=gpu), gpu, pcie)
    assert json.loads(usages_text(state)) == {
        "usage": {},
        "topology": [
            {
                "level": "PIX",
                "gpus": [0, 1, 2, 3],
                "groups": [{"level": "NVLINK", "gpus": [0, 2]}],
            }
        ],
    }


def test_nvlink_of_a_matrix_is_a_level_and_drawn_as_one_switch():
    text = NEAR.replace("PIX", "NV4")
    between = by_matrix(parse_matrix(text), whole_gpus(TWO), "f")
    state = state_of(view(), TWO, None, None, between, nearest=between)
    assert json.loads(usages_text(state))["topology"] == [{"level": "NVLINK", "gpus": [0, 1]}]
    assert graph_text(state) == drawn(view())


def test_pairs_whose_nvlink_is_unknown_are_named():
    gpu = GpuSample(tuple(make_gpu(number) for number in range(3)))
    assert list(unknown_nvlinks(gpu, {("GPU-0", "GPU-1"): False})) == [
        "whether NVLink joins GPU0 and GPU2 is unknown",
        "whether NVLink joins GPU1 and GPU2 is unknown",
    ]


def test_a_matrix_must_speak_of_as_many_gpus():
    matrix = parse_matrix(NEAR)
    assert (
        by_matrix(matrix, (make_gpu(0), make_gpu(1)), "f")(make_gpu(0), make_gpu(1))
        is LinkLevel.PIX
    )
    with pytest.raises(SourceError, match="f: has 2 GPUs, but the node has 1, up to GPU2"):
        by_matrix(matrix, (make_gpu(2),), "f")


def test_all_that_is_unknown_is_reported():
    gpu = GpuSample((make_gpu(0), make_gpu(1)), lost=("GPU-9",))
    row = CollectorRow("kubelet", False, 0.1, None, 0.0, {}, {}, {}, "no such file")
    lost = given("b", "GPU-9", GIB)
    seen = view(given("a", "GPU-0", scheme=Scheme.GPUSHARE), lost, gpu=gpu, collectors=(row,))
    lines = list(unknown(seen, gpu, lambda *_: None))
    assert [line.partition(":")[0] for line in lines] == [
        "collector kubelet fails",
        "GPU-9 does not answer",
        "the connection of GPU0 to GPU1 is unknown",
        "the memory of ml/a/main is unknown",
        "ml/b/main holds a share of a GPU that is not known here (GPU-9)",
    ]
    assert list(unknown(view(), TWO, lambda *_: LinkLevel.SYS)) == []


# ---------------------------------------------------------------- the command


def run(*arguments, **rest):
    return CliRunner().invoke(command, arguments, **rest)


def test_the_simulated_node_is_drawn_and_the_unknown_is_listed_separately():
    result = run("--simulate")
    assert result.exit_code == 0
    assert result.stdout.startswith("ROOT:0\n|---SYS (aval: 0, ")
    assert result.stdout.count("|   |---GPU") == 2
    assert "the connection of GPU0 to GPU1 is unknown: SYS is assumed" in result.stderr


def test_a_matrix_gives_the_gpu_topology(tmp_path):
    (tmp_path / "topo.txt").write_text(NEAR)
    for result in (
        run("--simulate", "--matrix", str(tmp_path / "topo.txt")),
        run("--simulate", "--matrix", "-", input=NEAR),
    ):
        assert result.stdout.startswith("ROOT:0\n|---PIX (aval: 0, ")
        assert result.stderr == ""


def test_usage_is_the_json_of_gpu_managers_gateway():
    result = run("--simulate", "--usage")
    usage_by_pod = json.loads(result.stdout)["usage"]
    ranker = next(stat for stat in usage_by_pod.values() if "ranker" in stat["stat"])
    assert ranker["project"] == "recsys"
    assert ranker["spec"] == {"ranker": {"gpu": 0.2, "mem": 4096}}
    assert ranker["stat"]["ranker"]["dev"][0]["pids"] == [1168455]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--simulate", "--matrix", "/nowhere"], "--matrix: /nowhere: "),
        (["--simulate", "--matrix", "/dev/null"], "the output of: nvidia-smi topo -m"),
        (["serve", "--simulate", "--socket=", "--listen=x"], "'--listen': 'x': must end in a port"),
        (["--simulate", "--shim.root=/x"], "--shim.root: --simulate brings its own node"),
        (["--simulate", "serve"], "--simulate: give flags after 'serve'"),
        (["--shim.root=/x", "serve"], "--shim.root: give flags after 'serve'"),
        (["--graph", "extra"], "No such command 'extra'"),
    ],
)
def test_flags_that_cannot_work_are_refused(arguments, words):
    result = run(*arguments)
    assert result.exit_code in (1, 2)
    assert words in result.stderr


def test_a_matrix_of_another_node_is_an_error(tmp_path):
    (tmp_path / "topo.txt").write_text(" GPU0\nGPU0   X")
    result = run("--simulate", "--matrix", str(tmp_path / "topo.txt"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "topo.txt: has 1 GPU, but the node has 2" in result.stderr


# ---------------------------------------------------------------- the real driver's calls


@pytest.fixture
def driver(tmp_path):
    return FakeDriver(tmp_path)


def with_driver(driver, *arguments):
    """The command as a process that finds this driver."""
    return subprocess.run(
        [*PROGRAM, *arguments],
        env={**os.environ, **driver.env()},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
    )


@pytest.mark.slow
def test_nvml_gives_the_gpu_topology(driver):
    gpus = [Device(uuid(number), total=16 * GIB) for number in range(4)]
    links = [Link(uuid(0), uuid(1), 10), Link(uuid(2), uuid(3), 20, nvlink=1)]
    driver.write(devices=gpus, links=links, processes=[Process(uuid(2), 4711)])
    done = with_driver(driver)
    assert done.returncode == 0, done.stderr
    shape = [line.partition(" (")[0] for line in done.stdout.splitlines()]
    assert shape == [
        "ROOT:4",
        "|---SYS",
        "|   |---PIX",
        "|   |   |---GPU0",
        "|   |   |---GPU1",
        "|   |---PXB",
        "|   |   |---GPU2",
        "|   |   |---GPU3",
    ]
    assert "GPU2 (pids: [4711]" in done.stdout
    assert "joined" not in done.stderr
    assert json.loads(with_driver(driver, "--usage").stdout)["topology"] == [
        {
            "level": "SYS",
            "gpus": [0, 1, 2, 3],
            "groups": [{"level": "PIX", "gpus": [0, 1]}, {"level": "NVLINK", "gpus": [2, 3]}],
        }
    ]


def test_a_driver_without_topology_leaves_the_links_unknown(driver):
    fault = Fault("nvmlDeviceGetTopologyCommonAncestor", code=3)
    driver.write(devices=[Device(uuid(0)), Device(uuid(1))], faults=[fault])
    done = with_driver(driver)
    assert done.stdout.startswith("ROOT:2\n|---SYS")
    assert "the connection of GPU0 to GPU1 is unknown" in done.stderr


def test_without_a_driver_it_fails_and_explains_what_can_be_done(driver):
    done = with_driver(driver)  # no state: its kernel module is not loaded
    assert (done.returncode, done.stdout) == (1, "")
    assert "DRIVER_NOT_LOADED" in done.stderr
    assert "--simulate" in done.stderr


def test_a_driver_that_hangs_times_out_and_the_process_ends(driver):
    fault = Fault("nvmlDeviceGetCount_v2", delay_ms=600_000)
    driver.write(devices=[Device(uuid(0))], faults=[fault])
    done = with_driver(driver, "--sample.timeout=300ms")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no answer before the deadline" in done.stderr


# ---------------------------------------------------------------- serving


def test_a_sample_that_fails_withdraws_the_state_and_the_next_one_has_it_again():
    class Node:
        def __init__(self):
            self.failures = [MemoryError()]

        def sample(self):
            raise self.failures.pop() if self.failures else SourceError(Reason.TIMEOUT, "driver")

    shown = Display(Node(), None, "", nvlink=False)
    for reason in (Reason.INTERNAL, Reason.TIMEOUT):
        shown.refresh()
        assert reason.explanation in shown.complaint()
        with pytest.raises(SourceError) as refused:
            shown.state()
        assert refused.value.reason is reason


@contextmanager
def serving(tmp_path, *arguments):
    """`vgpu topology serve`, once it reports that it serves: the process, its socket, its URL."""
    path = str(tmp_path / "gpu-manager.sock")
    listen = ["--listen=127.0.0.1:0", f"--socket={path}", "--interval=200ms"]
    log = tmp_path / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen([*PROGRAM, "serve", *listen, *arguments], stderr=out)

    def served():
        assert process.poll() is None, f"it ended before it served:\n{log.read_text()}"
        return re.search(r'msg="web server ready" .*?(http://127\.0\.0\.1:\d+)', log.read_text())

    try:
        yield process, path, wait_until(served, "served", context=log.read_text)[1]
    finally:
        process.kill()
        process.wait(WAIT_SECONDS)


def ask(path, method, answer):
    with grpc.insecure_channel(f"unix:{path}", options=POOL) as channel:
        return channel.unary_unary(
            f"/display.GPUDisplay/{method}",
            request_serializer=Empty.SerializeToString,
            response_deserializer=answer.FromString,
        )(Empty(), timeout=WAIT_SECONDS)


def fetch(url):
    with urllib.request.urlopen(url, timeout=WAIT_SECONDS) as reply:
        return json.loads(reply.read())


def test_clients_of_gpu_manager_are_served_until_sigterm(tmp_path):
    with serving(tmp_path, "--simulate") as (process, path, url):
        graph = ask(path, "PrintGraph", pb.GraphResponse).graph
        assert graph.startswith("ROOT:0\n")
        assert len(ask(path, "PrintUsages", pb.UsageResponse).usage) == 9
        assert fetch(f"{url}/graph")["graph"].startswith("ROOT:0\n")
        assert len(fetch(f"{url}/usage")["usage"]) == 9
        assert fetch(f"{url}/version")["version"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
        assert not Path(path).exists()


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=WAIT_SECONDS) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error as reply:
            return reply.code, reply.read().decode()


def test_it_serves_what_every_program_does(tmp_path):
    with serving(tmp_path, "--simulate", "--socket=", "--web.listen-address=127.0.0.1:0") as found:
        _, _, url = found
        page = get(f"{url}/")[1]
        assert "vgpu topology" in page
        for path in ("/graph", "/usage", "/version", "/metrics", "/-/healthy", "/-/ready"):
            assert f'<a href="{path}">' in page
        assert get(f"{url}/-/ready") == (200, "vgpu topology is ready\n")
        series = parse(get(f"{url}/metrics")[1])
        assert series["process_open_fds"] > 0
        addresses = re.search(
            'msg="web server ready" addresses=([^ ]*)', (tmp_path / "serve.log").read_text()
        )
        assert addresses[1].count("http://127.0.0.1:") == 2  # --listen is the same flag


def test_an_empty_socket_serves_http_alone(tmp_path):
    with serving(tmp_path, "--simulate", "--socket=") as (_, path, url):
        assert fetch(f"{url}/version")["version"]
        assert not Path(path).exists()


def test_without_a_driver_the_answer_is_unavailable_in_words(tmp_path):
    with serving(tmp_path) as (_, path, url):
        with pytest.raises(grpc.RpcError) as error:
            ask(path, "PrintGraph", pb.GraphResponse)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(urllib.error.HTTPError) as refused:
            fetch(f"{url}/graph")
        with refused.value as reply:
            assert reply.code == 503
            assert json.loads(reply.read())["code"] == 14
        assert get(f"{url}/-/healthy")[0] == 200
        status, problem = get(f"{url}/-/ready")
        assert (status, "driver" in problem) == (503, True)


def refused(*arguments):
    """What `serve` prints when it cannot; as a process, for it blocks signals for good."""
    command = [*PROGRAM, "serve", "--simulate", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS
    )
    assert done.returncode == 1
    return done.stderr


def test_an_address_or_socket_in_use_is_an_error_that_names_it(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert address in refused(f"--listen={address}", "--socket=")
    file = tmp_path / "file"
    file.touch()
    assert f"--socket: {file}: " in refused("--listen=127.0.0.1:0", f"--socket={file}")


def test_a_machine_without_a_driver_names_the_command_that_finds_out_why(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "vgpu", "topology"],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 1
    assert "(no NVIDIA driver here: vgpu doctor node; --simulate " in done.stderr
