"""The command's guards, and the traps that check-config names."""

import re
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from scheduler.config_check import ConfigTrap
from scheduler.main import command, is_loopback
from tests.support.environment import ROOT
from vgpu.placement.dialects import ROWS

GPUMEM = "nvidia.com/gpumem"
PAGE = (ROOT / "docs" / "scheduler.md").read_text()
STANZA = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1]


def run(*args):
    return CliRunner().invoke(command, args, catch_exceptions=False)


# ---------------------------------------------------------------- guards


@pytest.mark.parametrize("address", [":0", "0.0.0.0:0", "[::]:0", "example.com:0"])
def test_it_does_not_listen_for_strangers_without_client_certificates(address):
    """In a process of its own: a program blocks signals."""
    command_line = [
        *(sys.executable, "-m", "vgpu", "scheduler", "--single"),
        f"--web.listen-address={address}",
    ]
    ended = subprocess.run(command_line, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 1
    assert "client certificates" in ended.stderr
    assert repr(address).strip("'") in ended.stderr


def test_only_addresses_of_this_host_are_loopback():
    loopback = ("127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "localhost:1")
    assert all(map(is_loopback, loopback))
    assert not any(map(is_loopback, (":1", "0.0.0.0:1", "[::]:1", "10.0.0.1:1", "a.b:1")))


# ---------------------------------------------------------------- check-config


def checked(tmp_path, config):
    """The traps with their fields, and the exit status."""
    file = tmp_path / "config.yaml"
    file.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    result = run("check-config", str(file))
    found = re.findall(r"^(.*?): (?:error|warning) \((\w+)\)", result.output, re.MULTILINE)
    return {trap: field for field, trap in found}, result.exit_code


def changed(**fields):
    """The stanza of the documentation with other fields of its extender; None removes one."""
    config = yaml.safe_load(STANZA)
    extender = config["extenders"][0]
    extender.update(fields)
    for name in [name for name, value in extender.items() if value is None]:
        del extender[name]
    return config


def test_the_stanza_of_the_documentation_manages_every_resource_and_has_no_trap(tmp_path):
    assert checked(tmp_path, STANZA) == ({}, 0)
    resources = yaml.safe_load(STANZA)["extenders"][0]["managedResources"]
    assert {one["name"]: one["ignoredByScheduler"] for one in resources} == {
        name: is_ignored for row in ROWS for name, is_ignored in row.managed.items()
    }


def all_but(name):
    """The managed resources of the documentation without one."""
    resources = yaml.safe_load(STANZA)["extenders"][0]["managedResources"]
    return [one for one in resources if one["name"] != name]


def resource(name, ignored):
    return [{"name": name, "ignoredByScheduler": ignored}]


@pytest.mark.parametrize(
    ("config", "trap", "field", "status"),
    [
        (changed(managedResources=resource("cpu.example/x", False)), "no_extender", "extenders", 1),
        (changed(bindVerb=None), "no_bind_verb", "extenders[0].bindVerb", 1),
        (changed(filterVerb=None), "no_filter_verb", "extenders[0].filterVerb", 0),
        (changed(preemptVerb=None), "no_preempt_verb", "extenders[0].preemptVerb", 0),
        (changed(ignorable=True), "ignorable", "extenders[0].ignorable", 1),
        (changed(nodeCacheCapable=False), "whole_nodes", "extenders[0].nodeCacheCapable", 0),
        (changed(httpTimeout="500ms"), "short_timeout", "extenders[0].httpTimeout", 0),
        (changed(urlPrefix="https://vgpu:443"), "unverified", "extenders[0].tlsConfig", 0),
        (changed(managedResources=None), "all_pods", "extenders[0].managedResources", 0),
        (
            changed(managedResources=resource("tencent.com/vcuda-core", False)),
            "partly_managed",
            "extenders[0].managedResources: tencent.com/vcuda-memory",
            0,
        ),
        (
            changed(managedResources=resource("aliyun.com/gpu-mem", True))
            | {"percentageOfNodesToScore": 50},
            "ignored",
            "extenders[0].managedResources: aliyun.com/gpu-mem",
            0,
        ),
        (
            changed(managedResources=all_but(GPUMEM) + resource(GPUMEM, False)),
            "never_advertised",
            f"extenders[0].managedResources: {GPUMEM}",
            0,
        ),
        (
            changed(managedResources=all_but("nvidia.com/priority")),
            "never_advertised",
            "extenders[0].managedResources: nvidia.com/priority",
            0,
        ),
        (
            changed() | {"percentageOfNodesToScore": None},
            "some_nodes",
            "percentageOfNodesToScore",
            0,
        ),
        (
            changed() | {"profiles": [{"percentageOfNodesToScore": 50}]},
            "some_nodes",
            "percentageOfNodesToScore",
            0,
        ),
        (
            changed() | {"extenders": changed()["extenders"] * 2},
            "second_binder",
            "extenders[1].bindVerb",
            1,
        ),
        (
            changed()
            | {
                "profiles": [
                    {
                        "pluginConfig": [
                            {"name": "NodeResourcesFit", "args": {"ignoredResources": ["a/b"]}}
                        ]
                    }
                ]
            },
            "replaced_ignored",
            "profiles[0].pluginConfig: NodeResourcesFit",
            0,
        ),
    ],
)
def test_a_trap_is_named_with_its_field(tmp_path, config, trap, field, status):
    found, exit_code = checked(tmp_path, config)
    assert found[trap] == field
    assert exit_code == status
    assert ConfigTrap(trap).explanation in run("check-config", str(tmp_path / "config.yaml")).output


def test_ignored_resources_are_no_trap_where_all_nodes_are_scored(tmp_path):
    config = changed(managedResources=resource("aliyun.com/gpu-mem", True))
    assert checked(tmp_path, config) == ({}, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not YAML"),
        ("[" * 5000, "not YAML"),
        ("", "Expected `object`"),
        ("kind: Policy\napiVersion: v1\n", "v1 Policy in place of kubescheduler.config.k8s.io/v1"),
        (STANZA.replace("weight: 1", "ignorable: maybe"), "$.extenders[0].ignorable"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(tmp_path, text, message):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    result = run("check-config", str(file))
    assert result.exit_code == 1
    assert message in result.output
    assert str(file) in result.output
    assert result.output.count("\n") == 1
    assert run("check-config", str(tmp_path / "none")).exit_code == 1
