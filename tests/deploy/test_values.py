"""values.yaml, its comments and values.schema.json describe the same values."""

import json
from fnmatch import fnmatch

import yaml
from jsonschema import Draft7Validator

from deploy.generate import CHART
from deploy.values import commented, table
from tests.deploy.wrong_values import WRONG, merged
from tests.support.defects import no_defects
from tests.support.environment import ROOT
from vgpu import __version__

TEXT = (CHART / "values.yaml").read_text()
VALUES = yaml.safe_load(TEXT)
SCHEMA = json.loads((CHART / "values.schema.json").read_text())

OPEN = (
    "global",  # Helm's own
    "*.affinity",  # Kubernetes' own, and checked by its API server
    "*.namespaceSelector",
    "*.valueFrom",
    "monitoring.endpoint",  # Prometheus Operator's own
)
"""Objects in which anything may be."""


def resolved(schema):
    while "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    return schema


def properties(schema, prefix=""):
    """(dotted name, its schema) of everything that the schema knows by name."""
    for name, inner in resolved(schema).get("properties", {}).items():
        yield f"{prefix}{name}", resolved(inner)
        yield from properties(inner, f"{prefix}{name}.")


DESCRIBED = {value.name for value in commented(TEXT)}


def leaves(values, prefix=""):
    """Dotted names of the values; a mapping in which nothing has a comment is one value."""
    for name, value in values.items():
        full = f"{prefix}{name}"
        if any(value.startswith(f"{full}.") for value in DESCRIBED):
            yield from leaves(value, f"{full}.")
        else:
            yield full


def test_every_value_has_a_description():
    assert set(leaves(VALUES)) - DESCRIBED == set()
    assert all(value.about.endswith((".", "…")) for value in commented(TEXT))


def test_every_value_is_in_the_schema_and_all_that_is_in_it_is_a_value():
    known = {name for name, _ in properties(SCHEMA)}
    assert set(leaves(VALUES)) - known == set()

    def holds(name):
        inner = VALUES
        for part in name.split("."):
            if not isinstance(inner, dict):
                return True
            if part not in inner:
                return False
            inner = inner[part]
        return True

    optional = (
        "global",
        "*.resources.*",
        "*.updateStrategy.*",
        "*ecurityContext.*",
        "reconciler.config.*",
        "reconciler.node.config.*",
    )
    missing = {name for name in known if not holds(name)}
    assert {name for name in missing if not any(fnmatch(name, each) for each in optional)} == set()


def test_no_mapping_of_the_schema_takes_what_it_does_not_know():
    for name, schema in properties(SCHEMA):
        if schema.get("type") == "object" and not any(fnmatch(name, each) for each in OPEN):
            assert "additionalProperties" in schema, name
    assert SCHEMA["additionalProperties"] is False


def test_chart_and_program_have_the_same_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__


# ---------------------------------------------------------------- the schema

VALIDATOR = Draft7Validator(SCHEMA)
SETS = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((ROOT / "tests" / "deploy" / "values").glob("*.yaml"))
}


def refused(values):
    """(where, the message) of all that is refused of the chart's values with these over them."""
    for error in VALIDATOR.iter_errors(merged(VALUES, values)):
        yield "".join(f"/{part}" for part in error.absolute_path), error.message


def test_the_schema_is_one():
    Draft7Validator.check_schema(SCHEMA)


@no_defects
def test_right_values_are_taken():
    for name, values in SETS.items():
        for place, message in refused(values):
            yield f"{name}: {place}: {message}"


@no_defects
def test_each_wrong_value_is_refused_where_it_stands():
    for wrong in WRONG:
        found = list(refused(wrong.values))
        if [place for place, _ in found] != [wrong.place] or wrong.message not in found[0][1]:
            yield f"{wrong.values}: {found}"


# ---------------------------------------------------------------- the table

SAMPLE = """\
# Not above a key.

# All of them.
outer:
  # A number, that is
  # explained in two lines.
  number: 1
  # Text.
  text: |
    # no comment of ours
    inner: 2
  # A mapping is one value.
  mapping:
    inside: {a: 1}
  uncommented: 3
# The last.
last: ""
"""


def test_a_values_comment_is_what_stands_right_above_it():
    found = {value.name: (value.default, value.about) for value in commented(SAMPLE)}
    assert found == {
        "outer": (yaml.safe_load(SAMPLE)["outer"], "All of them."),
        "outer.number": (1, "A number, that is explained in two lines."),
        "outer.text": ("# no comment of ours\ninner: 2\n", "Text."),
        "outer.mapping": ({"inside": {"a": 1}}, "A mapping is one value."),
        "last": ("", "The last."),
    }


def test_the_table_has_a_row_for_each_value():
    rows = [line for line in table(SAMPLE).splitlines() if line.startswith("| `")]
    assert rows == [
        "| `outer.number` | `1` | A number, that is explained in two lines. |",
        '| `outer.text` | `"# no comment of ours\\ninner: 2"` | Text. |',
        "| `outer.mapping` | `{inside: {a: 1}}` | A mapping is one value. |",
        "| `last` | `''` | The last. |",
    ]
