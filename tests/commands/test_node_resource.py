"""`vgpu node-resource`: names and patches. What the API server makes of them is tested on one."""

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from vgpucli.main import main
from vgpucli.node_resource import name_error, operations

PATH = "/status/capacity/example.com~1fpga"


def run(*args, **kwargs):
    return CliRunner().invoke(main, ["node-resource", *args], **kwargs)


@pytest.mark.parametrize(
    "name", ["example.com/fpga", "nvidia.com/gpu", "a/B_c.d-9", "x" * 63 + ".io/" + "y" * 63]
)
def test_extended_resources_are_accepted(name):
    assert name_error(name) == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("cpu", "no domain"),
        ("", "no domain"),
        ("kubernetes.io/x", "Kubernetes' own"),
        ("batch.kubernetes.io/x", "Kubernetes' own"),
        ("mykubernetes.io/x", "Kubernetes' own"),
        ("/fpga", "not a domain"),
        ("Example.com/fpga", "not a domain"),
        ("example..com/fpga", "not a domain"),
        ("a." * 127 + "com/fpga", "not a domain"),
        ("requests.example.com/fpga", "those of quotas"),
        ("example.com/", "1 to 63"),
        ("example.com/a/b", "1 to 63"),
        ("example.com/-a", "1 to 63"),
        ("example.com/" + "a" * 64, "1 to 63"),
        ("example.com/fpga\n", "1 to 63"),
    ],
)
def test_what_is_no_extended_resource_is_refused_with_the_reason(name, why):
    assert why in name_error(name)


def test_a_change_is_guarded_by_what_was_seen():
    seen = {"cpu": "8", "example.com/fpga": "2"}
    assert operations("example.com/fpga", seen, 4) == [
        {"op": "test", "path": PATH, "value": "2"},
        {"op": "add", "path": PATH, "value": "4"},
    ]
    assert operations("example.com/fpga", seen, None) == [
        {"op": "test", "path": PATH, "value": "2"},
        {"op": "remove", "path": PATH},
    ]


def test_what_was_not_there_must_still_not_be_there():
    assert operations("example.com/fpga", {"cpu": "8"}, 4) == [
        {"op": "test", "path": PATH, "value": None},
        {"op": "add", "path": PATH, "value": "4"},
    ]


def test_a_node_without_any_capacity_gets_the_field():
    assert operations("example.com/fpga", {}, 4)[1:] == [
        {"op": "add", "path": "/status/capacity", "value": {"example.com/fpga": "4"}}
    ]


@given(st.sampled_from(["a.b/c", "a.b/d"]), st.none() | st.integers(0, 9))
def test_what_is_so_already_needs_no_patch(name, count):
    seen = {"cpu": "1"} if count is None else {name: str(count)}
    assert operations(name, seen, count) == []


@pytest.mark.parametrize(
    ("count", "stored"), [(1000, "1k"), (2**20, "1Mi"), (12000, "12k"), (0, "0"), (3, "3000m")]
)
def test_a_count_that_the_api_server_spells_in_its_own_way_needs_no_patch(count, stored):
    name = "example.com/fpga"
    assert operations(name, {name: stored}, count) == []
    assert operations(name, {name: stored}, count + 1) != []
    assert operations(name, {name: stored}, None) != []


def test_a_capacity_that_is_no_whole_number_can_be_replaced_and_removed():
    name = "example.com/fpga"
    assert operations(name, {name: "500m"}, None)[1]["op"] == "remove"
    assert operations(name, {name: "500m"}, 1)[1]["value"] == "1"


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["set", "n", "example.com/fpga"], "is not NAME=COUNT"),
        (["set", "n", "example.com/fpga=-1"], "is not NAME=COUNT"),
        (["set", "n", "example.com/fpga=1.5"], "is not NAME=COUNT"),
        (["set", "n", "example.com/fpga=9999999999"], "a count of 0 to"),
        (["set", "n", "cpu=4"], "'cpu' is not an extended resource: it has no domain"),
        (["unset", "n", "memory"], "'memory' is not an extended resource"),
        (["set", "", "example.com/fpga=4", "--yes"], "'' is no node's name"),
        (["unset", "..", "example.com/fpga", "--yes"], "'..' is no node's name"),
        (["set", "n", "example.com/fpga=4"], "cannot ask for confirmation"),
        (["unset", "n", "example.com/fpga"], "pass --yes"),
    ],
)
def test_wrong_calls_are_refused_before_anything_is_asked(args, complaint):
    result = run(*args)
    assert result.exit_code == 2
    assert complaint in result.output


def test_the_help_has_examples():
    assert "vgpu node-resource set node-7 example.com/fpga=4" in run("--help").output
