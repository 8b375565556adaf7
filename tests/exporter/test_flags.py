"""The command line: what parses, what is refused, and that a refusal names the flags."""

import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from exporter.command import command as exporter_command
from exporter.compat import Compat
from exporter.details import Detail
from exporter.flags import DEFAULTS, FLAGS, ExporterOptions, all_flags, options_from
from exporter.main import nvml_driver
from vgpu.model.units import GIB, MIB
from vgpu.program.flags import Duration
from vgpu.schemes.nvidia.resources import others
from vgpu.sources import nvml
from vgpucli.main import main as vgpu


def parsed(*arguments, env=None):
    seen = []

    @click.command()
    @all_flags
    @click.pass_context
    def command(ctx, **_):
        seen.append(options_from(ctx))

    result = CliRunner().invoke(command, arguments, env=env or {})
    return seen[0] if seen else result.output


def test_without_flags_the_defaults_stand():
    assert parsed() == DEFAULTS


def test_flags_and_environment_variables_say_the_same():
    by_flag = parsed(
        "--shim.root=/a",
        "--shim.root=/b",
        "--sample.interval=1m30s",
        "--compat=hami",
        "--no-collector.xid",
        "--node-name=n",
    )
    by_environment = parsed(
        env={
            "VGPU_SHIM_ROOT": "/a /b",
            "VGPU_SAMPLE_INTERVAL": "90",
            "VGPU_COMPAT": "hami",
            "VGPU_COLLECTOR_XID": "false",
            "NODE_NAME": "n",
        }
    )
    assert by_flag == by_environment
    assert by_flag.shim_root == ("/a", "/b")
    assert by_flag.sample_interval == 90.0
    assert by_flag.compat == (Compat.HAMI,)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--compat=none", "--compat=hami"], ["--compat none"]),
        (["--compat=volcano", "--compat=hami-legacy"], ["volcano", "hami-legacy"]),
        (["--compat=hami", "--compat-breakdown"], ["--compat-breakdown"]),
        (["--shim.root=/x", "--no-collector.shim"], ["--shim.root", "--no-collector.shim"]),
        (["--pods=/x", "--collector.api"], ["--pods", "--collector.api"]),
        (["--kubeconfig=/x"], ["--kubeconfig", "--no-collector.api and --no-collector.dra"]),
        (["--compat=volcano-scheduler"], ["volcano-scheduler", "--volcano.memory-factor"]),
        (["--volcano.memory-factor=0"], ["--volcano.memory-factor"]),
        (["--nvml.pcie-throughput", "--no-collector.nvml"], ["--nvml.pcie-throughput"]),
        (["--collector.xid", "--no-collector.nvml"], ["--collector.xid", "--collector.nvml"]),
        (["--collector.bare", "--no-collector.process"], ["--collector.bare"]),
        (["--path.procfs=/x", "--no-collector.process"], ["--path.procfs"]),
        (["--web.telemetry-path=/a b"], ["--web.telemetry-path"]),
        (["--once", "--web.listen-address=:1"], ["--once", "--web.listen-address"]),
        (["--web.telemetry-path=metrics"], ["--web.telemetry-path"]),
        (["--web.telemetry-path=/-/ready"], ["--web.telemetry-path"]),
        (["--sample.interval=0"], ["--sample.interval"]),
        (["--sample.interval=fast"], ["--sample.interval", "15s"]),
        (["--compat=dcgm"], ["--compat"]),
        (["--log.level=loud"], ["--log.level"]),
        (["--web.max-requests=0"], ["--web.max-requests"]),
        (["--web.max-connections=0"], ["--web.max-connections"]),
        (["--web.max-connections-per-address=x"], ["--web.max-connections-per-address"]),
        (["--nonsense"], ["--nonsense"]),
    ],
)
def test_what_cannot_work_is_refused_by_name(arguments, named):
    output = parsed(*arguments)
    assert isinstance(output, str)
    assert all(name in output for name in named), output


@pytest.mark.parametrize(
    ("text", "unit"), [("GiB", GIB), ("MiB", MIB), ("17MiB", 17 * MIB), ("2GiB", 2 * GIB)]
)
def test_a_gpushare_unit_is_one_that_the_device_plugin_takes_too(text, unit):
    assert parsed(f"--gpushare.memory-unit={text}").gpushare_memory_unit == unit


def test_the_exporter_guesses_no_unit():
    refused = parsed("--gpushare.memory-unit=auto")
    assert "'auto' is not GiB, MiB or a number of them such as 256MiB" in refused


def test_switching_everything_off_is_refused():
    on = ("nvml", "xid", "shim", "kubelet", "limits", "plugin", "process")
    off = [f"--no-collector.{name}" for name in on]
    assert "nothing to export" in parsed(*off)


def test_the_pods_need_no_kubelet_collector():
    assert parsed("--pods=/x", "--no-collector.kubelet").pods == "/x"


def test_a_missing_kubeconfig_is_reported_at_the_start(tmp_path):
    arguments = ["--collector.api", f"--kubeconfig={tmp_path / 'none'}", "--no-collector.nvml"]
    result = CliRunner().invoke(exporter_command, [*arguments, "--no-collector.xid"])
    assert result.exit_code == 2
    assert "--collector.api" in result.output
    assert "no such file" in result.output


def test_neither_the_kubernetes_client_nor_rich_nor_tls_is_loaded_unless_asked_for():
    program = (
        "import sys\n"
        "from vgpucli.main import main\n"
        "try:\n"
        "    main(['exporter', '--once', '--no-collector.nvml', '--no-collector.xid'])\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "heavy = {'kubernetes', 'rich', 'grpc', 'yaml', 'pynvml', 'ssl'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "vgpu_allocation_conflicts" in done.stdout


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "vgpu.sources.podresources", raising=False)
    result = CliRunner().invoke(exporter_command, ["--kubelet.pod-resources=/x"])
    assert result.exit_code == 2
    assert "vgpu[pod-resources]" in result.output


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15s", 15.0), ("500ms", 0.5), ("1m30s", 90.0), ("1h", 3600.0), ("2.5", 2.5), ("1.5s", 1.5)],
)
def test_durations_as_prometheus_writes_them(text, seconds):
    assert Duration().convert(text, None, None) == seconds


@given(st.text())
def test_any_other_text_is_no_duration_and_no_crash(text):
    try:
        seconds = Duration().convert(text, None, None)
    except click.BadParameter:
        return
    assert 0 < seconds < 86400


def test_every_option_has_a_flag_with_its_default():
    of_the_process = 1  # --nvidia.resource
    assert len(FLAGS) - of_the_process == len(ExporterOptions.__struct_fields__)


@pytest.mark.parametrize(
    ("flags", "environment"),
    [(("--nvidia.resource=example.com/gpu",), {}), ((), {"VGPU_NVIDIA_RESOURCE": "a.b/c d.e/f"})],
)
def test_names_of_resources_need_the_kubelet_and_hold_for_one_command(flags, environment):
    refused = CliRunner().invoke(
        vgpu, ["exporter", "--once", "--no-collector.kubelet", *flags], env=environment
    )
    assert "--nvidia.resource is of no use with --no-collector.kubelet" in refused.output
    assert others() == frozenset()


def test_help_and_version_of_the_command():
    result = CliRunner().invoke(vgpu, ["--help"])
    assert "exporter" in result.output
    assert "demo" in result.output
    assert CliRunner().invoke(vgpu, ["--version"]).output.startswith("vgpu ")
    assert CliRunner().invoke(vgpu, ["nothing"]).exit_code == 2


def modules_after(code):
    script = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
    )
    return set(done.stdout.split())


def test_help_imports_no_subcommand():
    code = "from click.testing import CliRunner\nfrom vgpucli.main import main\n"
    code += "assert 'exporter' in CliRunner().invoke(main, ['--help']).output"
    loaded = modules_after(code)
    assert "vgpucli.main" in loaded
    assert not loaded & {"exporter", "msgspec", "pynvml", "prometheus_client", "simulator"}


def test_the_exporter_imports_neither_kubernetes_nor_grpc_nor_yaml_unasked():
    code = (
        "from exporter import main\n"
        "from exporter.flags import ExporterOptions\n"
        "main.make_sampler(ExporterOptions(), main.nvml_driver(ExporterOptions())).sample()"
    )
    loaded = modules_after(code)
    assert "vgpu.sources.nvml" in loaded
    assert not loaded & {
        "kubernetes",
        "grpc",
        "google.protobuf",
        "yaml",
        "bcrypt",
        "simulator",
    }


def test_the_exporters_own_version_flag():
    assert CliRunner().invoke(vgpu, ["exporter", "--version"]).output.startswith("vgpu ")


def test_the_demo_refuses_flags_of_a_real_node():
    result = CliRunner().invoke(vgpu, ["demo", "--once", "--shim.root=/x", "--pods=/y"])
    assert result.exit_code == 2
    assert "--shim.root, --pods" in result.output


def test_a_containers_environment_does_not_stand_in_the_way_of_once():
    assert parsed("--once", env={"VGPU_WEB_LISTEN_ADDRESS": ":1"}).once


def test_details_are_chosen_by_group_or_all_at_once():
    assert parsed().metrics_detail == ()
    assert parsed("--metrics.detail", "calls").metrics_detail == (Detail.CALLS,)
    assert parsed("--metrics.detail", "all").metrics_detail == tuple(Detail)


@pytest.mark.parametrize("timeout", [1.0, DEFAULTS.sample_timeout])
def test_a_wait_for_xids_leaves_a_sample_time_to_initialise_the_driver_again(monkeypatch, timeout):
    """The sample first waits for the waiter to leave the driver: 1.2 of the longest wait."""
    monkeypatch.setattr(nvml, "NvmlSource", lambda **arguments: arguments)
    arguments = nvml_driver(ExporterOptions(sample_timeout=timeout))
    assert 1.2 * arguments["longest_wait"] <= 0.6 * timeout
