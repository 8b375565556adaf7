"""The traps that check-config names; tests/cluster/test_scheduler_config.py asks kube-scheduler."""

import re

import pytest
import yaml
from click.testing import CliRunner

from scheduler.check_config.traps import ConfigTrap
from scheduler.main import command
from tests.scheduler.scheduler_configs import (
    ACCEPTED,
    REFUSED,
    STANZA,
    UNKNOWN_TO_US,
    WRONG_TYPES,
    all_but,
    changed,
    resource,
)
from vgpu.placement.dialects import dialect_rows

INTELS = "gpu.intel.com/i915"
GPUMEM = "nvidia.com/gpumem"


def run(*args):
    return CliRunner().invoke(command, args, catch_exceptions=False)


def checked(tmp_path, config):
    """The traps with their fields, and the exit status."""
    file = tmp_path / "config.yaml"
    file.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    result = run("check-config", str(file))
    found = re.findall(r"^(.*?): (?:error|warning) \((\w+)\)", result.output, re.MULTILINE)
    return {trap: field for field, trap in found}, result.exit_code


def test_the_stanza_of_the_documentation_manages_every_resource_and_has_no_trap(tmp_path):
    assert checked(tmp_path, STANZA) == ({}, 0)
    resources = yaml.safe_load(STANZA)["extenders"][0]["managedResources"]
    assert {one["name"]: one["ignoredByScheduler"] for one in resources} == {
        name: is_ignored for row in dialect_rows() for name, is_ignored in row.managed.items()
    }


def test_a_field_without_a_value_is_as_if_it_were_not_there(tmp_path):
    """kube-scheduler reads null as Go does."""
    document = yaml.safe_load(STANZA)
    document["profiles"] = [None]
    document["extenders"][0] |= {"ignorable": None, "weight": None, "tlsConfig": None}
    without = yaml.safe_load(STANZA)
    del without["extenders"][0]["weight"]
    assert checked(tmp_path, document) == checked(tmp_path, yaml.safe_dump(without))


@pytest.mark.parametrize(
    ("config", "trap", "field", "status"),
    [
        (changed(managedResources=resource(INTELS, False)), "no_extender", "extenders", 1),
        (
            changed(managedResources=resource("cpu.example/x", False) + resource(INTELS)),
            "no_known_resource",
            "extenders[0].managedResources: cpu.example/x",
            1,
        ),
        (changed(bindVerb=None), "no_bind_verb", "extenders[0].bindVerb", 1),
        (changed(filterVerb=None), "no_filter_verb", "extenders[0].filterVerb", 0),
        (
            changed(prioritizeVerb=None),
            "no_prioritize_verb",
            "extenders[0].prioritizeVerb",
            0,
        ),
        (changed(preemptVerb=None), "no_preempt_verb", "extenders[0].preemptVerb", 0),
        (changed(ignorable=True), "ignorable", "extenders[0].ignorable", 1),
        (changed(nodeCacheCapable=False), "whole_nodes", "extenders[0].nodeCacheCapable", 0),
        (changed(httpTimeout="500ms"), "short_timeout", "extenders[0].httpTimeout", 0),
        (
            changed(urlPrefix="https://vgpu:443", enableHTTPS=True),
            "unverified",
            "extenders[0].tlsConfig",
            0,
        ),
        (changed(managedResources=None), "all_pods", "extenders[0].managedResources", 0),
        (
            changed(managedResources=resource("tencent.com/vcuda-core", False)),
            "partly_managed",
            "extenders[0].managedResources: tencent.com/vcuda-memory",
            1,
        ),
        (
            changed(
                managedResources=resource("nvidia.com/vgpu", False)
                + resource("nvidia.com/gpumem", True)
            ),
            "partly_managed",
            "extenders[0].managedResources: nvidia.com/gpu",
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


def judged(tmp_path, config, trap, field):
    """How the only line of a trap of a refused file judges it, and the exit status."""
    _, exit_code = checked(tmp_path, config)
    output = run("check-config", str(tmp_path / "config.yaml")).output
    (line,) = [line for line in output.splitlines() if f"({trap})" in line]
    place, _, rest = line.partition(": ")
    assert field in (place, place.removeprefix("extenders[0]."))
    assert rest.endswith(f" ({trap}): {ConfigTrap(trap).explanation}")
    return rest.partition(" ")[0], exit_code


@pytest.mark.parametrize(("config", "trap", "field"), REFUSED.values(), ids=REFUSED)
def test_what_kube_scheduler_refuses_is_an_error_with_its_field(tmp_path, config, trap, field):
    assert judged(tmp_path, config, trap, field) == ("error", 1)


@pytest.mark.parametrize(("config", "trap", "field"), UNKNOWN_TO_US.values(), ids=UNKNOWN_TO_US)
def test_a_field_that_a_later_version_may_have_is_a_warning(tmp_path, config, trap, field):
    assert judged(tmp_path, config, trap, field) == ("warning", 0)


@pytest.mark.parametrize("config", ACCEPTED.values(), ids=ACCEPTED)
def test_a_configuration_that_kube_scheduler_accepts_is_not_reported_as_refused(tmp_path, config):
    found, _ = checked(tmp_path, config)
    assert not [trap for trap in found if "refuses" in ConfigTrap(trap).explanation]


@pytest.mark.parametrize("config", WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_a_value_of_the_wrong_type_is_one_line_with_its_field(tmp_path, config):
    found, exit_code = checked(tmp_path, config)
    output = run("check-config", str(tmp_path / "config.yaml")).output
    assert (found, exit_code, output.count("\n")) == ({}, 1, 1)
    assert "$.extenders[0]." in output


def test_a_file_without_our_extender_is_refused_for_that_of_others(tmp_path):
    others = changed(managedResources=resource(INTELS), weight=0)
    found, _ = checked(tmp_path, others)
    assert found == {"no_weight": "extenders[0].weight", "no_extender": "extenders"}


def test_the_cas_of_the_host_verify_where_https_is_not_enabled(tmp_path):
    """enableHTTPS does not choose the protocol: without a CA it switches the verification off."""
    assert "unverified" not in checked(tmp_path, changed(urlPrefix="https://vgpu"))[0]
    assert "unverified" not in checked(tmp_path, changed(enableHTTPS=True))[0]
    insecure = changed(urlPrefix="https://vgpu", tlsConfig={"insecure": True})
    assert "unverified" in checked(tmp_path, insecure)[0]
    verified = changed(urlPrefix="https://vgpu", enableHTTPS=True, tlsConfig={"caFile": "/ca"})
    assert "unverified" not in checked(tmp_path, verified)[0]


def test_a_key_that_stands_twice_is_named_with_its_line(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(STANZA.replace("bindVerb: bind", "bindVerb: bind\n    filterVerb: other"))
    line = file.read_text().splitlines().index("    filterVerb: other") + 1
    result = run("check-config", str(file))
    assert result.exit_code == 1
    assert result.output == f"Error: {file}, line {line}: kube-scheduler refuses a key twice\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not YAML"),
        ("[" * 5000, "not YAML"),
        ("", "Expected `object`"),
        ("kind: Policy\napiVersion: v1\n", "v1 Policy in place of kubescheduler.config.k8s.io/v1"),
        (STANZA.replace("weight: 100", "ignorable: maybe"), "$.extenders[0].ignorable"),
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
