"""The checks of one node: the driver, sources of the exporter, sockets, containerd, monitors."""

import pytest

from vgpu.model.facts import Gpu
from vgpu.model.reasons import Reason
from vgpu.sources.samples import CollectorRow
from vgpucli.doctor.check_node import ContainerdConfig, NodeFacts, node_findings, parse_containerd
from vgpucli.doctor.model import Severity

GPU = Gpu("GPU-1", 0, {"driver_version": "580.95.05", "name": "NVIDIA L40S"}, {})
SOCKET = "/var/lib/kubelet/device-plugins/kubelet.sock"


def collector(name, success=True, rejected=None, error=""):
    return CollectorRow(name, success, 0.1, 1.0, 0.0, {}, rejected or {}, {}, error)


GOOD = NodeFacts(
    1.0,
    "a",
    (collector("nvml"), collector("kubelet")),
    (GPU, GPU),
    {SOCKET: True},
    ContainerdConfig(enable_cdi=True),
    "",
    "",
)


def changed(**fields):
    names = NodeFacts.__struct_fields__
    return NodeFacts(**{name: fields.get(name, getattr(GOOD, name)) for name in names})


CASES = {
    "as it should be": (GOOD, {"driver", "runtime_config", "passed"}),
    "no driver": (
        changed(collectors=(collector("nvml", success=False, error="no library"),), gpus=()),
        {"no_driver", "runtime_config"},
    ),
    "a GPU that is lost": (
        changed(collectors=(collector("nvml", rejected={Reason.GPU_LOST: 1}),)),
        {"driver", "gpu_unreadable", "runtime_config"},
    ),
    "files that may not be read": (
        changed(collectors=(collector("kubelet", success=False, error="denied"),)),
        {"driver", "source_failed", "runtime_config"},
    ),
    "files that were refused": (
        changed(collectors=(collector("shim", rejected={Reason.BAD_MAGIC: 2, Reason.ABSENT: 1}),)),
        {"driver", "input_refused", "runtime_config", "passed"},
    ),
    "folders of systems that are not in use": (
        changed(collectors=(collector("shim", rejected={Reason.ABSENT: 3}),)),
        {"driver", "runtime_config", "passed"},
    ),
    "no kubelet": (
        changed(sockets={SOCKET: False}),
        {"driver", "socket_absent", "runtime_config", "passed"},
    ),
    "CDI is off": (
        changed(containerd=ContainerdConfig(enable_cdi=False)),
        {"driver", "cdi_off", "passed"},
    ),
    "other folders of CDI specs": (
        changed(containerd=ContainerdConfig(enable_cdi=True, spec_dirs=("/etc/cdi",))),
        {"driver", "runtime_config", "cdi_folder_unknown", "passed"},
    ),
    "no containerd": (
        changed(containerd=None, containerd_note="config.toml: it does not exist"),
        {"driver", "containerd_unknown", "passed"},
    ),
    "HAMi's monitor": (
        changed(monitor="process 1 (vGPUmonitor)"),
        {"driver", "runtime_config", "feedback_monitor", "passed"},
    ),
    "a process list that is not the host's": (
        changed(monitor=None, monitor_note="/proc: hostPID is missing"),
        {"driver", "runtime_config", "monitor_unknown", "passed"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_findings(case):
    facts, expected = CASES[case]
    assert {each.reason.value for each in node_findings(facts)} == expected


def test_a_check_that_crashes_costs_itself_only():
    class Broken(dict):
        def items(self):
            raise RuntimeError(SECRET)

    findings = list(node_findings(changed(sockets=Broken())))
    (failed,) = (each for each in findings if each.reason == "check_failed")
    assert failed.about == "sockets"
    assert SECRET not in repr(failed)
    assert {"driver", "runtime_config"} <= {each.reason.value for each in findings}
    assert "passed" not in {each.reason.value for each in findings}


def test_the_driver_and_the_gpus_are_named():
    (driver,) = (each for each in node_findings(GOOD) if each.reason == "driver")
    assert driver.severity is Severity.INFO
    assert driver.evidence == ("driver 580.95.05: 2 × NVIDIA L40S",)


SECRET = "hunter2-s3cr3t"
RUNTIME = "io.containerd.cri.v1.runtime"
CRI = "io.containerd.grpc.v1.cri"


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("", ContainerdConfig()),
        ("version = 2", ContainerdConfig()),
        (f'[plugins."{CRI}"]\nenable_cdi = true', ContainerdConfig(enable_cdi=True)),
        (f"[plugins.'{RUNTIME}']\nenable_cdi = false", ContainerdConfig(enable_cdi=False)),
        ("[plugins.cri]\nenable_cdi = true", ContainerdConfig(enable_cdi=True)),
        (
            f'imports = ["/etc/x.toml"]\n[plugins."{CRI}"]\ncdi_spec_dirs = ["/a", "/b"]',
            ContainerdConfig(spec_dirs=("/a", "/b"), has_imports=True),
        ),
        ('plugins = "none"', ContainerdConfig()),
        (f'[plugins."{CRI}"]\nenable_cdi = "true"\ncdi_spec_dirs = 1', ContainerdConfig()),
    ],
)
def test_containerds_configuration_is_read_for_cdi(text, config):
    assert parse_containerd(text) == config


def test_what_is_no_toml():
    with pytest.raises(ValueError, match="Expected"):
        parse_containerd("[plugins")


def test_credentials_of_registries_are_not_printed():
    auth = f'[plugins."{CRI}".registry.configs."x".auth]\npassword = "{SECRET}"'
    config = parse_containerd(f'[plugins."{CRI}"]\nenable_cdi = false\n{auth}')
    assert SECRET not in repr(list(node_findings(changed(containerd=config))))
