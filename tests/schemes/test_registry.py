"""A sharing system is one row: what adds it adds it everywhere, and nobody else knows its name."""

import ast
import json
import re

import click
import pytest
from click.testing import CliRunner

from deviceplugin.builders.registry import BUILDERS, AdapterBuilder, AdapterInputs, builder_of
from deviceplugin.flags import options_from
from deviceplugin.main import command as plugin_command
from exporter.command import command as exporter_command
from exporter.sampler import codecs
from reconciler.cluster_index import ClusterIndex
from reconciler.main import command as reconcile_group
from reconciler.observe.dump import DumpObserver
from reconciler.policy import Policy
from reconciler.rules.drift import recover
from tests.schemes.toy_scheme import ASSIGNED, DEVICE, GPUS, RESOURCE, TOY
from tests.support import product
from tests.support import sample_cluster as sample
from tests.support.environment import ROOT
from vgpu.inventory import Units
from vgpu.kube.documents import Keep
from vgpu.kube.dump import decode_dump
from vgpu.model.facts import Gpu, GpuSample
from vgpu.model.names import Scheme
from vgpu.program.own_packages import PACKAGES as OWN_PACKAGES
from vgpu.schemes.registry import ROWS, SchemeRegistry, registered, registry
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.samples import Observation, pod_sample
from vgpucli.inspect.command import command as inspect_command
from vgpucli.main import main

GPU = sample.uuid(1)
DUMP = json.dumps(
    sample.dump(
        [
            sample.node("toy-1", {RESOURCE: 1}, {GPUS: GPU}),
            sample.pod("player", "toy-1", {RESOURCE: 1}, {DEVICE: GPU}),
        ]
    )
).encode()


@pytest.fixture
def toy():
    with registered(TOY):
        yield TOY.scheme


# ---------------------------------------------------------------- added by its row


def test_the_exporter_reads_its_pods(toy):
    pods = decode_dump(DUMP, keep=Keep.SHARING).pods
    seen = Observation(
        gpu=GpuSample((Gpu(GPU, 0, {}, {}),)),
        pods=pod_sample(pods, complete=True),
    )
    ledger = LedgerBuilder(codecs(None, None), "toy-1").ledger(seen)
    assert [(one.scheme, one.share.device) for one in ledger.holdings] == [(toy, GPU)]


def test_inspect_shows_it_and_takes_its_name(toy, tmp_path):
    path = tmp_path / "dump.json"
    path.write_bytes(DUMP)
    for words in (("--scheme", "toy"), ("--scheme", "toy", "-o", "json"), ()):
        printed = CliRunner().invoke(main, ["inspect", "--from", str(path), *words])
        assert printed.exit_code == 0, printed.output
        assert "toy" in printed.output
        assert "player" in printed.output


def test_the_reconciler_repairs_its_annotations(toy):
    view = DumpObserver(DUMP, "dump.json", Units()).view(sample.NOW)
    assert [codec.scheme for codec in view.codecs] == [toy]
    (finding,) = recover(ClusterIndex(view.snapshot, view.codecs), Policy())
    assert finding.object_ref.name == "player"
    assert finding.action.after == {ASSIGNED: "true"}


def test_the_plugin_makes_its_adapter_by_the_name_in_the_row(toy, monkeypatch):
    made = object()
    monkeypatch.setitem(BUILDERS, "toy", AdapterBuilder(lambda options, around: made))
    ctx = plugin_command.make_context("device-plugin", ["--scheme", "toy"])
    options = options_from(ctx)
    assert options.scheme is toy
    assert builder_of(options.scheme).make(options, AdapterInputs()) is made


def test_without_its_row_nobody_knows_it(tmp_path):
    path = tmp_path / "dump.json"
    path.write_bytes(DUMP)
    printed = CliRunner().invoke(main, ["inspect", "--from", str(path), "--scheme", "toy"])
    assert "'toy' is not one of 'volcano', 'gpushare', 'gaia', 'kubeshare'" in printed.output
    with pytest.raises(click.UsageError):
        plugin_command.make_context("device-plugin", ["--scheme", "toy"])
    assert decode_dump(DUMP, keep=Keep.SHARING).pods == ()


# ---------------------------------------------------------------- the rows


def test_two_rows_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two rows"):
        SchemeRegistry((TOY, TOY))


def test_every_scheme_has_a_row_and_every_codec_the_name_of_its_row():
    assert set(registry().schemes) > set(Scheme) - {Scheme.NONE}
    assert [row.codec(None).name for row in ROWS] == [row.name for row in ROWS]
    assert {row.codec(None).scheme for row in ROWS} == set(registry().schemes)


def test_a_rows_adapter_is_there():
    assert {row.adapter for row in ROWS if row.adapter} == BUILDERS.keys()


def flags(command):
    return {name for param in command.params for name in param.opts}


def test_a_rows_flags_are_those_of_the_programs():
    reconcile = reconcile_group.commands["plan"]
    for row in ROWS:
        if row.unit:
            for command in (exporter_command, inspect_command, reconcile):
                assert row.unit.flag in flags(command)
            assert not row.adapter or row.unit.flag in flags(plugin_command)
        if row.evidence.limits:
            for command in (exporter_command, reconcile):
                assert row.evidence.limits.flag in flags(command)


# ---------------------------------------------------------------- nobody else knows them

PACKAGES = ("volcano", "gpushare", "gaia", "kubeshare", "nvidia")
CLASSES = re.compile(r"(Unsized)?(Volcano|Gpushare|Gaia|KubeShare)|HAMI|VOLCANO")

MEMBERS = re.compile(rf"^Scheme\.(?:{'|'.join(PACKAGES).upper()})$")

HOME = ("vgpu/schemes/", "deviceplugin/adapters/", "deviceplugin/builders/", "deviceplugin/gaia/")
"""Schemes, the plugin's adapters, and what gpu-manager's library needs of a plugin."""

OF_ONE_ORIGINAL = {
    "simulator/": "makes files and objects as each original does",
    "kubeshare/": "is the controllers of one original",
    "vgpucli/feedback/": "writes the regions of one library, HAMi-core",
    "vgpu/placement/": "computes what each original's scheduler chooses",
    "vgpu/quota/": "reads and counts what each original's quota limits",
    "vgpucli/quota/": "writes the quotas of each original",
    "exporter/compat/": "has each original's metrics",
    "vgpu/ledger/": "reads regions, environments and virtual GPUs as their systems write them",
    "vgpu/sources/regions.py": "reads the regions of one library, HAMi-core",
    "vgpu/sources/kubelet_checkpoint.py": "counts the replicas that NVIDIA's plugin registers",
    "vgpu/sources/mps.py": "reads the log of NVIDIA's MPS daemons, and their clients' environment",
    "vgpu/sources/linked_libraries.py": "reads the environment of one library, HAMi-core",
    "vgpu/kube/kept_keys.py": "keeps the resources of NVIDIA's plugin, whose row keeps no keys",
    "vgpu/program/nvidia_flag.py": "sets the other names of its resources",
    "vgpu/program/written_keys.py": "has the keys of KubeShare's controllers",
    "vgpu/inventory/nvidia.py": "lists what NVIDIA's plugin advertises, whose pods have no claims",
    "vgpucli/inspect/pod_lines.py": "shows the same",
    "vgpucli/inspect/legacy.py": "prints what one original's inspect prints",
    "vgpucli/inspect/command.py": "its --legacy is one original's",
    "vgpucli/demo/walkthrough.py": "its pods are of one system",
    "scheduler/compat/": "has the gauges and pages of each original's scheduler",
    "reconciler/rules/kubeshare.py": "is the rule on one original's own objects",
    "deviceplugin/flags.py": "has a default scheme, and one original's --legacy-refusal",
    "vgpucli/doctor/": "looks for the components of each original",
    "vgpucli/explain/amounts.py": "has the resources of memory of all systems",
    "vgpucli/explain/queue_evidence.py": "knows that KAI counts nodes without GPUs of NVIDIA",
    "vgpucli/explain/read.py": "asks for NVIDIA's ResourceClaims where no plugin has its resources",
    "vgpucli/explain/request_steps.py": "knows that gpushare serves one container of a pod",
    "vgpucli/demo/tokens.py": "its pods are of one system",
    "vgpu/sources/token_page.py": "reads the page of one original's token daemon",
    "vgpu/model/names.py": "declares the names",
}
"""Where one scheme is spoken of by name, and why."""


def names_of_schemes(file):
    """Imports of a scheme's package, its classes, and members of Scheme other than NONE."""
    for node in product.nodes(file):
        if isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")
            named = {*module[2:], *(alias.name for alias in node.names)}
            if module[:2] == ["vgpu", "schemes"] and not named.isdisjoint(PACKAGES):
                yield ast.unparse(node)
        elif isinstance(node, ast.Name) and CLASSES.fullmatch(node.id):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from MEMBERS.findall(f"{node.value.id}.{node.attr}")


def test_no_scheme_is_named_outside_of_its_package_and_its_adapter():
    found = [
        f"{name}: {text}"
        for file in product.files(OWN_PACKAGES)
        if not (name := str(file.relative_to(ROOT))).startswith((*HOME, *OF_ONE_ORIGINAL))
        for text in names_of_schemes(file)
    ]
    assert found == []


def test_nobody_asks_which_class_a_codec_is():
    asks = re.compile(r"isinstance\([^)]*codec")
    files = product.files(OWN_PACKAGES)
    assert [str(file) for file in files if asks.search(file.read_text())] == []
