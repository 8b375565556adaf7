"""Each program × each sharing system × each source of the names of its resources.

The holding is the same in all cells: pod ``idle`` has 4 GiB of the node's one GPU. Where no source
has the names (a ConfigMap or a register of gpushare or gpu-manager does not exist), nobody may
judge by the originals' names.
"""

import json
from contextlib import contextmanager

import click
import pytest
from click.testing import CliRunner

from deviceplugin.builders.registry import AdapterInputs, builder_of
from deviceplugin.flags import options_from
from deviceplugin.main import command as plugin_command
from exporter.allocations import allocation_totals
from exporter.families import OWN_TABLES
from exporter.sampler import codecs
from exporter.statuspage import render
from exporter.view import ExporterView, gpu_rows
from scheduler.check_config.command import check_config
from tests.commands.conftest import dumped, printed_words
from tests.support import renamed_systems as renamed
from tests.support import sample_cluster as sample
from vgpu.kube.documents import Keep
from vgpu.kube.dump import decode_dump
from vgpu.metrics.render import Format, Renderer
from vgpu.model.facts import Gpu, GpuSample, Grant, KubeletSample, ProcessSample
from vgpu.model.names import PodRef
from vgpu.model.units import GIB, MIB
from vgpu.placement.dialects import demand_of, scheduler_schemes
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.program.resource_flags import renamed_resource_flags
from vgpu.program.resource_names import settle_by_dumps
from vgpu.schemes.registry import registry
from vgpu.schemes.resource_names import ORIGINAL_NAMES, NamesSource
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.samples import Observation, pod_sample
from vgpucli.main import main
from vgpucli.top.reading import read_page

FLAG, CONFIG_MAP, EVIDENCE = "flag", "ConfigMap", "evidence"
CELLS = [(system, source) for system in renamed.SYSTEMS for source in (FLAG, CONFIG_MAP, EVIDENCE)]
KNOWN = {
    *((system, FLAG) for system in renamed.SYSTEMS),
    *((system, source) for system in ("hami", "volcano") for source in (CONFIG_MAP, EVIDENCE)),
}
"""Where the source has names. HAMi's nodes have that of the count only: amounts are unknown."""
PARTIAL = ("hami", EVIDENCE)

cells = pytest.mark.parametrize(("system", "source"), CELLS)
TOTAL = ("memory_total_bytes",)
UNITS = {"volcano": MIB, "gpushare": GIB}


def objects_of(system, source, *more):
    """The objects of the cluster, with the ConfigMap if that is the source and there is one."""
    config_map = renamed.config_map(system) if source == CONFIG_MAP else None
    return [*renamed.objects(system), *([config_map] if config_map else []), *more]


def dump_of(system, source):
    return json.dumps(sample.dump(objects_of(system, source))).encode()


@pytest.fixture
def run(tmp_path):
    """Runs a command on a dump, with the flags if they are the source."""

    def ran(system, source, *words, more=(), status=0):
        flags = renamed.flags(system) if source == FLAG else []
        dump = dumped(tmp_path, objects_of(system, source, *more))
        return printed_words((*words, *dump, *flags), status)

    return ran


@renamed_resource_flags
@click.command("probe")
def probe():
    """A command with nothing but the flags."""


@contextmanager
def in_force(system, source):
    """The names as a program has them: from its flags, or else from a dump of its cluster."""
    flags = renamed.flags(system) if source == FLAG else []
    with probe.make_context("probe", flags):
        if source != FLAG:
            settle_by_dumps([(dump_of(system, source), "dump.json")])
        yield


def pods_of(system, source):
    return decode_dump(dump_of(system, source), keep=Keep.SHARING).pods


def view(seen):
    """What is published of an observation."""
    builder = LedgerBuilder(codecs(GIB, MIB), renamed.NODE)
    ledger, usage = builder.ledger(seen), builder.usage(seen)
    return ExporterView(
        timestamp=float(sample.NOW),
        node=renamed.NODE,
        interval=15.0,
        usage=usage,
        collectors=(),
        calls={},
        xids=(),
        build={},
        own={},
        gpus=tuple(gpu_rows(seen.gpu, usage)),
        allocations=allocation_totals(ledger),
    )


def page(system, source):
    """The exporter's view of the node by the API server's pods."""
    gpus = (Gpu(renamed.GPU, 0, {"minor_number": "0"}, {TOTAL: 16 * GIB}),)
    pods = tuple(pod for pod in pods_of(system, source) if pod.node)
    return view(
        Observation(
            gpu=GpuSample(gpus),
            process=ProcessSample({}, True, frozenset(pod.ref.uid for pod in pods)),
            kubelet=KubeletSample({pod.ref.uid: pod.ref for pod in pods}, {}, ()),
            pods=pod_sample(pods, complete=True),
        )
    )


# ---------------------------------------------------------------- the names themselves


@cells
def test_the_names_in_force_are_those_of_the_source(system, source):
    with in_force(system, source):
        names = registry().names[system]
        for role, name in renamed.NAMES[system].items():
            is_known = (system, source) in KNOWN
            if source == EVIDENCE:  # what no node advertises is not known
                is_known = is_known and role in renamed.advertised_roles(system)
            assert getattr(names, role) == (name if is_known else renamed.original(system, role))
        assert names.is_partial is (source == EVIDENCE and (system, source) in KNOWN)
    assert registry().names == ORIGINAL_NAMES
    assert registry().sources == {}


def test_a_flag_comes_before_the_config_map_and_that_before_the_nodes():
    other = ["--hami.resource=count=example.com/other"]
    with probe.make_context("probe", other):
        settle_by_dumps([(dump_of("hami", CONFIG_MAP), "dump.json")])
        assert registry().names["hami"].count == "example.com/other"
        assert registry().sources == {"hami": NamesSource.FLAG}
    config_map = renamed.config_map("hami")
    text = config_map["data"]["device-config.yaml"].replace("/vgpu\n", "/third\n")
    config_map["data"]["device-config.yaml"] = text
    objects = [*renamed.objects("hami"), config_map]
    with probe.make_context("probe", []):
        settle_by_dumps([(json.dumps(sample.dump(objects)).encode(), "dump.json")])
        assert registry().names["hami"].is_unknown  # no node has the ConfigMap's name
    objects[0]["status"]["capacity"]["nvidia.com/third"] = "10"
    with probe.make_context("probe", []):
        settle_by_dumps([(json.dumps(sample.dump(objects)).encode(), "dump.json")])
        assert registry().names["hami"].count == "nvidia.com/third"
        assert registry().sources == {"hami": NamesSource.CONFIG_MAP}


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("number=a.com/b", "does not begin with count"),
        ("count=gpu", "is not a resource"),
        ("count=nvidia.com/gpumem", "is both"),
        ("memory=aliyun.com/gpu-mem", "is both"),
    ],
)
def test_a_wrong_name_is_one_line(word, problem):
    printed = CliRunner().invoke(main, ["inspect", f"--hami.resource={word}"])
    assert printed.exit_code == 2
    assert problem in " ".join(printed.stderr.split())


# ---------------------------------------------------------------- programs


@cells
def test_the_exporter_its_status_page_and_top_have_the_holding(system, source):
    with in_force(system, source):
        shown = page(system, source)
        metrics = Renderer(OWN_TABLES).render(shown).body(Format.TEXT).decode()
        status = render(shown, sample.NOW, "/metrics").decode()
        shares = read_page(metrics).shares
    held = {(share.pod, share.limit) for share in shares}
    if (system, source) in KNOWN:
        assert held == {("idle", 4 * GIB)}
        assert "idle" in status
        assert "4.0 GiB" in status
    else:
        assert held <= {("idle", 4 * GIB)}
    assert "without_device" not in metrics.partition("vgpu_ledger_conflicts{")[2][:400]


@pytest.mark.parametrize("is_flag", [True, False])
@pytest.mark.parametrize("system", ["hami", "volcano"])
def test_without_the_api_server_the_exporter_reads_the_plugins_answer(system, is_flag):
    env = {
        "NVIDIA_VISIBLE_DEVICES": renamed.GPU,
        "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m",
        "CUDA_DEVICE_SM_LIMIT": "25",
    }
    uid, name = "uid-of-ml-idle", renamed.NAMES[system]["count"]
    grant = Grant(uid, "main", name, (f"{renamed.GPU}-0",), env)
    with probe.make_context("probe", renamed.flags(system) if is_flag else []):
        shown = view(
            Observation(
                gpu=GpuSample((Gpu(renamed.GPU, 0, {}, {TOTAL: 16 * GIB}),)),
                process=ProcessSample({}, True, frozenset({uid})),
                kubelet=KubeletSample({uid: PodRef(uid, "ml", "idle")}, {}, (grant,)),
            )
        )
    assert [(one.pod.name, one.limit_bytes) for one in shown.usage.shares] == [("idle", 4 * GIB)]


@cells
def test_the_reconciler_finds_nothing_wrong_with_a_healthy_pod(run, system, source):
    words = ("--rule", "running_without_device=apply", "--evict-running")
    printed = json.loads(run(system, source, "reconcile", "plan", "-o", "json", *words))
    assert printed["actions"] == []
    assert printed["skipped"] == []


@cells
def test_the_device_plugin_registers_the_names_of_its_flags(system, source):
    """No device plugin reads a ConfigMap or another plugin's register."""
    scheme = {"hami": ["volcano", "--volcano.dialect=hami"]}.get(system, [system])
    needs = ["--volcano.memory-factor=1"] if scheme[0] == "volcano" else []
    flags = renamed.flags(system) if source == FLAG else []
    ctx = plugin_command.make_context("device-plugin", ["--scheme", *scheme, *needs, *flags])
    with ctx:
        options = options_from(ctx)
        adapter = builder_of(options.scheme).make(options, AdapterInputs())
    names = renamed.NAMES[system] if source == FLAG else {}
    expected = {
        names.get(role, renamed.original(system, role))
        for role in renamed.advertised_roles(system)
        if (system, role) != ("gpushare", "count")  # it writes that into the node's status
    }
    assert set(adapter.resources) == expected


@cells
def test_the_extender_reads_the_request(system, source):
    with in_force(system, source):
        (waits,) = [pod for pod in pods_of(system, source) if not pod.node] or [None]
        demanded = demand_of(waits, scheduler_schemes(UNITS)) if waits else None
    if (system, source) not in KNOWN:
        assert waits is None  # nothing shows that it requests a GPU
        return
    scheme, demand = demanded
    (request,) = demand.requests
    assert scheme.row.name == system
    assert request.memory_bytes == (None if (system, source) == PARTIAL else 4 * GIB)


@pytest.mark.parametrize("is_flag", [True, False])
def test_check_config_reads_the_configuration_of_hamis_chart(is_flag):
    flags = renamed.flags("hami") if is_flag else []
    path = str(renamed.CHART / "kube-scheduler-config.yaml")
    printed = CliRunner().invoke(check_config, [*flags, path]).stdout
    vendors = printed.partition("resources of other vendors")[2]
    assert ("nvidia.com/vgpu" in printed.partition("other vendors")[2]) is False
    assert bool(vendors) is is_flag
    assert ("no_known_resource" in printed) is not is_flag
    if not is_flag:
        names = "nvidia.com/vgpu, nvidia.com/vgpumem, nvidia.com/vgpucores"
        assert printed.startswith(f"extenders[0].managedResources: {names}, ")
        assert "--hami.resource and the like name them" in printed
        assert "cambricon" not in printed
        assert "no_extender" not in printed


# ---------------------------------------------------------------- commands


@cells
def test_fit_counts_more_such_pods(run, system, source):
    requested = [
        word
        for name, units in renamed.requested(system).items()
        for word in ("--request", f"{name}={units}")
    ]
    is_partial = (system, source) == PARTIAL
    printed = run(system, source, "fit", *requested, status=int(is_partial))
    if is_partial:
        assert printed == ""  # what is unknown gets no number
    elif (system, source) in KNOWN:
        assert printed.startswith("3 pods fit")
    else:
        assert "Not checked: resources that another scheduler extender may place" in printed


@cells
def test_explain_finds_the_holding_and_nothing_wrong_with_the_node(run, system, source):
    node = run(system, source, "explain", "node", "gpu-1")
    pod = run(system, source, "explain", "pod", "ml/idle")
    if (system, source) in KNOWN:
        assert "registered passed 1 GPU" in node
        assert "Nothing that was checked is wrong with the node" in node
        assert "main holds 4.0 GiB" in pod
    else:
        assert "main holds" not in pod or "4.0 GiB" in pod
        assert "fails at step" not in pod


@cells
def test_quotas_are_those_of_the_names(run, system, source):
    name = renamed.NAMES[system]["memory"]
    entry = f"limits.{name}" if system == "hami" else f"requests.{name}"
    quota = sample.resource_quota("gpus", {}, {})
    quota["spec"]["hard"] = {entry: "8192"}
    printed = run(system, source, "quota", "manifests", "--no-policy", more=[quota])
    is_hamis = system == "hami" and source in (FLAG, CONFIG_MAP)
    assert (f"requests.{name}: '8192'" in printed) is is_hamis
    inspected = run(system, source, "inspect", more=[quota])
    if (system, source) in KNOWN and (system, source) != PARTIAL:
        assert "4.0 GiB" in inspected


@cells
def test_doctor_reports_sources_that_differ(run, system, source):
    """The flags name one resource, the ConfigMap or the node another one."""
    printed = run(system, source, "doctor", status=0)
    assert "names_differ" not in printed
    count = next(iter(renamed.advertised_roles(system)))
    other = ["--" + f"{system}.resource={count}=example.com/other"]
    if source == FLAG or (system, source) not in KNOWN:
        return
    printed = run(system, source, "doctor", *other, status=3)
    assert "names_differ" in printed
    assert (
        f"example.com/other: the flags of this command {renamed.NAMES[system][count]}:" in printed
    )


def test_doctor_reports_an_extender_and_a_plugin_with_different_names(run):
    def workload(kind, name, *args):
        container = {"name": name, "image": "r/vgpu:1", "args": list(args)}
        spec = {"template": {"spec": {"containers": [container]}}}
        metadata = {"name": name, "namespace": "vgpu-system"}
        version = {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}
        return version | {"status": {"desiredNumberScheduled": 1, "numberReady": 1}}

    scheduler = workload("Deployment", "scheduler", "scheduler", "--hami.resource=count=a.com/x")
    words = ("device-plugin", "--scheme=volcano", "--volcano.dialect=hami")
    plugin = workload("DaemonSet", "plugin", *words, "--hami.resource=count=a.com/y")
    printed = run("hami", EVIDENCE, "doctor", more=[scheduler, plugin], status=3)
    assert "names_differ: HAMi, count" in printed
    assert "a.com/x: vgpu scheduler 1 (Deployment vgpu-system/scheduler)" in printed
    assert "a.com/y: vgpu device plugin 1 (DaemonSet vgpu-system/plugin)" in printed


def test_a_pod_without_a_name_is_refused_for_want_of_a_request():
    """The original's name is not that of a renamed system: such a pod requests nothing of it."""
    original = {"nvidia.com/gpumem": 4096}
    document = sample.pod("old", "", original)
    content = json.dumps(sample.dump([renamed.node("hami"), document])).encode()
    with probe.make_context("probe", renamed.flags("hami")):
        (pod,) = decode_dump(content, keep=Keep.SHARING).pods
        refusal = demand_of(pod, scheduler_schemes(UNITS))
    assert refusal == PlacementRefusal.of(PlacementReason.NOTHING_REQUESTED)
