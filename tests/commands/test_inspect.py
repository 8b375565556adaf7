"""`vgpu inspect` as a person calls it: on dumps, in all its forms, and with wrong flags."""

import itertools
import json
import os
import subprocess
import sys

import msgspec
import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from tests.commands.conftest import dumped
from tests.support import sample_cluster as sample
from tests.support.environment import ROOT
from tests.support.sample_cluster import HOUR, NOW
from vgpu.inventory import Objects, Units, inventory
from vgpu.kube.dump import decode_dump
from vgpu.model.durations import age
from vgpu.model.units import GIB, MIB, count, rounded_size
from vgpucli.inspect.document import InventoryDocument
from vgpucli.inspect.layout import layout_for
from vgpucli.inspect.legacy import details, summary
from vgpucli.inspect.table import show
from vgpucli.main import main

NODES = (
    sample.volcano_node("gpu-1", 1, healthy=(True, False)),
    sample.volcano_pod("train-bert-large-uncased-7c9d8f6b54-qq7lz", "gpu-1", 1, 24000, 50),
    sample.volcano_pod("infer-0", "gpu-1", 1, 8000, 20, bind="allocating", age=720),
    sample.pod("waits", limits=sample.volcano_limits(32000, 80), unschedulable="no room", age=90),
)

TABLE = """\
  GPU                      MEMORY            held/total CORES    held/all SHARE
    POD                                          MEMORY PHASE       CORES   AGE
  █ held · ▒ held, reserved by the scheduler only · ░ free · – unknown or none
gpu-1  volcano · 2 GPUs · 13.7 GiB free · 45.0 GiB unavailable
  GPU-00000001             ███████▒▒░░░   31.2/45.0 GiB ████▒▒░░  70/100%  2/10
    ml/infer-0                                  7.8 GiB assumed       20%   12m
    ml/train-bert-lar…-7c9d8f6b54-qq7lz        23.4 GiB assigned      50%
  GPU-00000002   unhealthy ░░░░░░░░░░░░    0.0/45.0 GiB ░░░░░░░░   0/100%  0/10

Without a device: 2
  ml/infer-0  7.8 GiB, 20% of cores  volcano on gpu-1  12m
      a device is reserved, but was never allocated (GPU-00000001)
  ml/waits  31.2 GiB, 80% of cores  volcano  1m
      no node fits the pod: no room

Free capacity
  volcano    2 GPUs, 13.7 GiB free of 90.0 GiB
             45.0 GiB more on unhealthy GPUs: gpu-1 GPU-00000002
             room for 0 more of 31.2 GiB, 80% of cores (as ml/waits wants): 0.0
             GiB of the free memory (0%) usable

1 node, 2 GPUs, 2 pods with devices, 2 without, 0 conflicts, as of 2026-09-21
  14:13:20 UTC
"""


def read(items):
    dump = decode_dump(json.dumps(sample.dump(items)).encode())
    return Objects(dump.nodes, dump.pods, dump.share_pods, dump.unhealthy)


def shown(tmp_path, items, **options):
    """What a terminal is sent."""
    path = tmp_path / "screen"
    with path.open("w", encoding=options.pop("encoding", "utf-8"), errors="replace") as file:
        console = Console(file=file, highlight=False, **options)
        show(console, inventory(read(items), Units()), NOW)
    return path.read_text()


@pytest.fixture
def dump(tmp_path):
    def write(*items, name="dump.json"):
        path = tmp_path / name
        path.write_text(json.dumps(sample.dump(items or None)))
        os.utime(path, (NOW, NOW))
        return str(path)

    return write


def run(*args, **kwargs):
    return CliRunner().invoke(main, ["inspect", *args], **kwargs)


# ---------------------------------------------------------------- the table


def test_the_table_on_a_terminal_of_80_columns(tmp_path):
    assert (
        shown(tmp_path, NODES, width=80, force_terminal=True, no_color=True)
        .replace("\x1b[0m", "")
        .replace("\x1b[1m", "")
        .replace("\x1b[2m", "")
        == TABLE
    )


@pytest.mark.parametrize("width", [80, 100, 140, 250])
def test_no_line_of_a_gpu_is_wider_than_the_terminal(tmp_path, width):
    screen = shown(tmp_path, sample.items(), width=width, force_terminal=True, color_system=None)
    gpus = [line for line in screen.splitlines() if "GiB" in line and ("█" in line or "░" in line)]
    assert len(gpus) == 13
    assert max(map(len, gpus)) <= width
    assert layout_for(width, wide=False).width <= width


def test_elsewhere_than_on_a_terminal_names_are_whole_and_nothing_is_coloured(dump):
    printed = run("--from", dump(*NODES)).output
    assert "ml/train-bert-large-uncased-7c9d8f6b54-qq7lz " in printed
    assert "\x1b" not in printed
    assert all(line == line.rstrip() for line in printed.splitlines())


def test_no_color_is_obeyed(tmp_path, monkeypatch):
    colours = "\x1b[36m"
    assert colours in shown(tmp_path, NODES, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert colours not in shown(tmp_path, NODES, force_terminal=True, color_system="standard")


def test_a_terminal_without_unicode_gets_bars_too(tmp_path):
    screen = shown(tmp_path, NODES, width=80, color_system=None, encoding="ascii")
    assert "#######==..." in screen
    assert "?" not in screen


def test_what_tenants_write_cannot_steer_the_terminal(tmp_path):
    waits = sample.pod("p", limits=sample.volcano_limits(1), unschedulable="\x1b]0;owned\x07\x9b2J")
    screen = shown(tmp_path, [NODES[0], waits], color_system=None)
    assert "?]0;owned??2J" in screen


def test_containers_are_named_where_a_pod_shows_several(tmp_path):
    limits = {"tencent.com/vcuda-core": 10, "tencent.com/vcuda-memory": 1}
    pod = sample.gaia_pod("p", "n", 10, 1, 0, containers=[("a", limits), ("b", limits)])
    pod["metadata"]["annotations"]["tencent.com/predicate-gpu-idx-1"] = "1"
    alone = sample.gaia_pod("q", "n", 10, 1, 0)
    screen = shown(tmp_path, [sample.gaia_node("n"), pod, alone], color_system=None)
    assert "ml/p/a " in screen
    assert "ml/p/b " in screen
    assert "ml/q " in screen


def test_conflicts_are_explained_in_sentences(dump):
    pods = [sample.volcano_pod(f"p{n}", "gpu-1", 1, 30000) for n in range(2)]
    printed = " ".join(run("--from", dump(NODES[0], *pods)).output.split())
    assert "Conflicts: 1 gpu-1 GPU-00000001" in printed
    assert "the shares of a device add up to more than it has" in printed
    assert "(by ml/p0/main, ml/p1/main)" in printed


def test_a_gpu_of_which_too_much_is_held_is_red(tmp_path):
    pods = [sample.volcano_pod(f"p{n}", "gpu-1", 1, 30000) for n in range(2)]
    screen = shown(
        tmp_path, [NODES[0], *pods], width=80, force_terminal=True, color_system="standard"
    )
    assert f"\x1b[1;31m{'█' * 12}" in screen


def test_a_node_that_is_not_ready_or_unknown_or_cordoned_is_marked(dump):
    printed = run(
        "--from",
        dump(
            sample.volcano_node("gpu-1", 1, ready=False, cordoned=True),
            sample.gaia_pod("p", "gone", 10, 1, 0),
        ),
    ).output
    assert "gpu-1  volcano · 2 GPUs · 90.0 GiB unavailable  NotReady  cordoned\n" in printed
    assert "gone  gaia · 0 GPUs  not a node of this cluster\n  on no known GPU\n" in printed


def test_wide_has_uuids_models_sources_and_free_memory(dump):
    printed = run("--from", dump(*NODES), "-o", "wide").output
    assert f"{sample.uuid(1)}     NVIDIA L40S" in printed
    assert "13.7 GiB free\n" in printed
    assert "volcano uid-of-ml-infer-0 (annotations)\n" in printed


def test_a_cluster_that_shares_nothing_is_reported(dump):
    result = run("--from", dump(sample.node("n"), sample.pod("p", "n")))
    assert result.output.startswith("No node shares GPUs.\n")
    assert result.exit_code == 0


def test_where_nothing_is_shown_the_searched_schemes_are_named(dump):
    """The others do share: that nobody does would be wrong."""
    path = dump(NODES[0], sample.node("cpu-1"))
    words_by_flags = {
        ("cpu-1",): "Node cpu-1 shares no GPUs.\n",
        ("--scheme", "gaia"): "No node shares GPUs by gaia.\n",
        ("gpu-1", "--scheme", "gaia"): "Node gpu-1 shares no GPUs by gaia.\n",
        ("-n", "none"): "No selected pod has a share of a GPU.\n",
        ("gpu-1", "-l", "app=none"): "No selected pod has a share of a GPU of gpu-1.\n",
    }
    for flags, words in words_by_flags.items():
        assert run(*flags, "--from", path).output.startswith(words)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0.0 GiB"), (MIB, "1 MiB"), (GIB, "1.0 GiB"), (10240 * GIB, "10.0 TiB")],
)
def test_amounts_for_people(amount, text):
    assert rounded_size(amount) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (60, "1m"), (7200, "2h"), (9e5, "10d"), (-1, "")]
)
def test_ages_for_people(seconds, text):
    assert age(seconds) == text


def test_free_memory_that_no_share_can_have_stands_apart_by_name(tmp_path):
    nodes = (
        sample.volcano_node("gpu-1", 1, healthy=(True, False)),
        sample.volcano_node("gpu-2", 3, cordoned=True),
        sample.volcano_node("gpu-3", 5, ready=False),
    )
    lines = [line.strip() for line in shown(tmp_path, nodes, width=100).splitlines()]
    at = lines.index("volcano    6 GPUs, 45.0 GiB free of 269.9 GiB")
    assert lines[at + 1 : at + 4] == [
        "45.0 GiB more on unhealthy GPUs: gpu-1 GPU-00000002",
        "90.0 GiB more on nodes that are not ready: gpu-3",
        "90.0 GiB more on cordoned nodes: gpu-2",
    ]


def test_a_pod_on_no_known_gpu_keeps_the_name_that_its_annotation_has(tmp_path):
    lost = sample.volcano_pod("lost", "gpu-1", 77, 1000)
    text = shown(tmp_path, (sample.volcano_node("gpu-1", 1), lost), width=80)
    assert f"annotations name {sample.uuid(77)}" in text


@pytest.mark.parametrize(("number", "text"), [(0, "0 pods"), (1, "1 pod"), (2, "2 pods")])
def test_one_thing_is_not_several(number, text):
    assert count(number, "pod") == text
    assert count(number, "pod with GPUs") == f"{text} with GPUs"


# ---------------------------------------------------------------- the state of a pod


def stuck(name, state=None, *, restarts=0, deleted=None, **options):
    pod = sample.volcano_pod(name, "gpu-1", 1, 1000, state=state, **options)
    pod["status"]["containerStatuses"][0]["restartCount"] = restarts
    if deleted is not None:
        at = sample.stamp(NOW - deleted + 30)  # it is due 30 s after the request
        pod["metadata"] |= {"deletionTimestamp": at, "deletionGracePeriodSeconds": 30}
    return pod


def waits(reason, message=""):
    return {"waiting": {"reason": reason, "message": message}}


STUCK = (
    sample.volcano_node("gpu-1", 1, healthy=(True,)),
    stuck("a-ends", deleted=2 * HOUR),
    stuck("b-crashes", waits("CrashLoopBackOff", "back-off 5m0s restarting"), restarts=40),
    stuck("c-cdi", waits("CreateContainerError", "unresolvable CDI\ndevices x")),
    stuck("d-image", waits("ImagePullBackOff"), deleted=60),
    stuck("e-begins", waits("ContainerCreating")),
    stuck("f-runs", restarts=3),
)


def test_a_pod_that_does_not_run_has_its_state_beside_its_phase(tmp_path):
    lines = [line.strip() for line in shown(tmp_path, STUCK, width=100).splitlines()]
    states = {
        name.split()[0]: state
        for name, state in itertools.pairwise(lines)
        if name.startswith("ml/") and "assigned" in name
    }
    assert states["ml/a-ends"] == "Terminating for 2h"
    assert states["ml/b-crashes"] == "CrashLoopBackOff, 40 restarts"
    assert states["ml/c-cdi"] == "CreateContainerError: unresolvable CDI devices x"
    assert states["ml/d-image"] == "Terminating for 1m; ImagePullBackOff"
    assert states["ml/e-begins"] == "ContainerCreating"
    assert "restarts" not in states["ml/f-runs"]


def test_the_json_has_the_state_of_every_pod(dump):
    document = json.loads(run("--from", dump(*STUCK), "-o", "json").output)
    states = {
        holding["pod"]["name"]: holding["podState"]
        for holding in document["nodes"][0]["devices"][0]["holdings"]
    }
    assert states["a-ends"] == {
        "phase": "Running",
        "deletingSince": sample.stamp(NOW - 2 * HOUR),
        "waitingReason": "",
        "waitingMessage": "",
        "restarts": 0,
    }
    assert states["b-crashes"]["waitingReason"] == "CrashLoopBackOff"
    assert states["b-crashes"]["restarts"] == 40
    assert states["c-cdi"]["waitingMessage"] == "unresolvable CDI devices x"
    assert states["f-runs"]["restarts"] == 3


# ---------------------------------------------------------------- json and yaml


def test_the_json_follows_its_documented_shape(dump):
    result = run("--from", dump(), "-o", "json")
    document = msgspec.json.decode(result.output, type=InventoryDocument)
    assert (document.api_version, document.kind) == ("vgpu.dev/v1alpha1", "Inventory")
    node = document.nodes[0]
    gpu = node.devices[0]
    assert (node.name, gpu.uuid) == ("a100-1", sample.uuid(1))
    assert gpu.memory_held_bytes + gpu.memory_free_bytes == gpu.memory_bytes
    assert sum(h.memory_bytes for h in gpu.holdings) == gpu.memory_held_bytes
    assert {one.reason for one in document.pending} >= {
        "unreadable",
        "unschedulable",
        "not_assigned",
    }
    assert document.conflicts[0].type == "device_unhealthy"
    assert [capacity.scheme for capacity in document.free_capacities] == [
        "volcano",
        "gpushare",
        "gaia",
        "kubeshare",
    ]


KEYS_OF_JSON = {
    "nodes": "name known ready unschedulable schemes devices unplaced unitConfirmed systems closed"
    " closedDetail memoryFreeBytes memoryAvailableBytes memoryKeptBytes memoryMaybeHeldBytes"
    " maybeHeldBy standing",
    "pending": "pod container scheme node reason explanation detail device since request podState",
    "conflicts": "node type explanation device pod container detail statements",
    "rooms": "scheme devices memoryBytes memoryHeldBytes memoryFreeBytes memoryUsableBytes fits"
    " probe unavailable system memoryKeptBytes memoryMaybeHeldBytes maybeHeldBy closed",
}


def test_the_documentation_names_every_field_of_the_json(dump):
    document = json.loads(run("--from", dump(), "-o", "json").output)
    text = (ROOT / "docs" / "inspect.md").read_text()
    for part, keys in KEYS_OF_JSON.items():
        assert " ".join(document[part][0]) == keys
    fields = set(document)
    for part in (*KEYS_OF_JSON,):
        fields |= set(document[part][0])
    gpu = document["nodes"][0]["devices"][0]
    fields |= {*gpu, *gpu["holdings"][0], *gpu["holdings"][0]["podState"]}
    assert {field for field in fields if f"`{field}`" not in text} == set()


def test_yaml_has_the_same_content_as_json(dump):
    path = dump()
    as_json = run("--from", path, "-o", "json").output
    as_yaml = yaml.safe_load(run("--from", path, "-o", "yaml").output)
    assert msgspec.convert(as_yaml, InventoryDocument) == msgspec.json.decode(
        as_json, type=InventoryDocument
    )
    assert as_yaml["asOf"] == json.loads(as_json)["asOf"]  # RFC 3339, not YAML's own form


def test_the_json_names_the_sources_that_conflict(dump):
    pods = [sample.volcano_pod(f"p{n}", "gpu-1", 1, 30000) for n in range(2)]
    (conflict,) = json.loads(run("--from", dump(NODES[0], *pods), "-o", "json").output)["conflicts"]
    assert (conflict["type"], conflict["pod"]) == ("overcommitted", None)
    statements = conflict["statements"]
    assert [(one["source"], one["pod"]["name"], one["container"]) for one in statements] == [
        ("annotations", "p0", "main"),
        ("annotations", "p1", "main"),
    ]
    assert statements[0]["where"] == "annotations of ml/p0"


# ---------------------------------------------------------------- what is read


def test_a_dump_may_come_from_standard_input_and_in_parts(dump):
    nodes = json.dumps(sample.dump(NODES[:1]))
    result = run("--from", "-", "--from", dump(*NODES[1:]), input=nodes)
    assert "2 pods with devices" in result.output


def test_configmaps_in_the_dump_mark_unhealthy_gpus(dump):
    node = sample.gpushare_node("infer-1", gpus=2)
    assert "unhealthy is not known" in run("--from", dump(node)).output.replace("\n  ", " ")
    output = run("--from", dump(node, sample.unhealthy("infer-1", "1"))).output
    assert "GPU 1          unhealthy" in output
    assert "not known" not in output


def test_the_age_of_things_is_that_at_the_time_of_the_dump(dump):
    assert "12m" in run("--from", dump(*NODES)).output


def test_a_dump_without_nodes_or_pods_names_what_is_missing(dump):
    assert "there are no nodes" in run("--from", dump(NODES[1])).output
    assert "there are no pods" in run("--from", dump(NODES[0])).output


def test_one_node(dump):
    printed = run("a100-2", "--from", dump()).output
    assert "sweep-1" in printed
    assert "a100-1" not in printed


def test_one_scheme(dump):
    printed = run("--from", dump(), "--scheme", "gaia").output
    assert "vcuda-whole" in printed
    assert "a100" not in printed


# ---------------------------------------------------------------- as the original prints it


@pytest.mark.parametrize(("flags", "print_"), [((), summary), (("-d",), details)])
def test_legacy_prints_the_originals_bytes(dump, flags, print_):
    inventory = read(sample.items())
    result = run("--from", dump(), "--scheme", "gpushare", "--legacy", *flags)
    assert result.output == print_(inventory.nodes, inventory.pods)
    assert "infer-1" in result.output


def test_legacy_of_one_node(dump):
    nodes = [sample.gpushare_node(name) for name in ("one", "two")]
    printed = run("one", "--from", dump(*nodes), "--scheme", "gpushare", "--legacy").output
    assert "one" in printed
    assert "two" not in printed


# ---------------------------------------------------------------- what can go wrong


def test_a_node_that_does_not_exist_is_an_error_that_names_near_ones(dump):
    result = run("a100-l", "--from", dump())
    assert result.exit_code == 1
    assert "there is no node 'a100-l'. Is it a100-" in result.output
    assert "There are 7 nodes" in run("zzz", "--from", dump()).output
    assert "No node is known at all" in run("zzz", "--from", dump(NODES[1])).output


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b'{"kind":"List","items":[{}, 1]}'])
def test_a_file_that_is_no_dump_is_an_error_that_names_it(tmp_path, content):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    result = run("--from", str(path))
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: --from {path}: ")
    assert "kubectl get nodes,pods -A -o json" in result.output


def test_a_dump_that_is_empty_is_distinguished_from_a_broken_one():
    """As ``kubectl get … | vgpu inspect --from -`` gives it when kubectl fails."""
    result = run("--from", "-", input="\n")
    assert (result.exit_code, result.output) == (
        1,
        "Error: --from -: it is empty. Has kubectl failed?\n",
    )


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path):
    result = run("--from", str(tmp_path / "none"))
    assert (result.exit_code, result.output) == (
        1,
        f"Error: --from {tmp_path}/none: No such file or directory\n",
    )


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--legacy"], "--legacy needs --scheme gpushare"),
        (["--legacy", "--scheme", "gaia"], "--legacy needs --scheme gpushare"),
        (["--legacy", "--scheme", "gpushare", "-o", "json"], "drop --output"),
        (["-d"], "--details needs --legacy"),
        (["--from", "x", "--context", "y"], "--from asks no cluster"),
        (["--from", "-", "--from", "-"], "once only"),
        (["--scheme", "slurm"], "'slurm' is not one of"),
        (["--volcano.memory-factor", "0"], "0 is not in the range"),
        (["a", "b"], "unexpected extra argument"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags, complaint):
    result = run(*flags)
    assert result.exit_code == 2
    assert complaint in result.output


def test_without_any_cluster_it_explains_what_to_do(monkeypatch, tmp_path):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    result = run()
    assert result.exit_code == 1
    assert "pass --kubeconfig FILE or set KUBECONFIG" in result.output


def test_a_reader_that_leaves_early_is_no_error(dump):
    """As ``| head`` does."""
    with subprocess.Popen(
        [sys.executable, "-m", "vgpu", "inspect", "--from", dump(), "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


def test_as_kubectls_plugin_it_calls_itself_so():
    script = (
        "import sys; sys.argv[0] = '/usr/bin/kubectl-vgpu'; from vgpucli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "inspect", "--help"],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stdout.startswith("Usage: kubectl vgpu inspect [OPTIONS] [NODE]")


def test_the_lines_of_a_node_and_of_a_pod_that_waits_name_hami_and_not_its_scheme(tmp_path):
    gpu = {"id": sample.uuid(1), "index": 0, "count": 10, "devmem": 46068, "devcore": 100}
    gpu |= {"type": "NVIDIA-L40S", "numa": 0, "health": True, "mode": "hami-core"}
    register = {"hami.io/node-nvidia-register": json.dumps([gpu])}
    waits = sample.pod("w", "", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000})
    source = dumped(tmp_path, (sample.node("h1", {"nvidia.com/gpu": 10}, register), waits))
    lines = CliRunner().invoke(main, ("inspect", *source)).stdout.splitlines()
    assert any(line.startswith("h1  hami · 1 GPU") for line in lines), lines
    assert any(line.startswith("  ml/w  1000 MiB  hami ") for line in lines), lines
