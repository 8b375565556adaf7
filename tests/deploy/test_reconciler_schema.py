"""The chart's schema of the reconciler's configuration takes what the reconciler takes."""

import re

import pytest
import yaml
from jsonschema import Draft7Validator

from deploy import reconciler_schema
from reconciler.config.settings import KEYS, ConfigError, ReconcilerSettings, config_text, parse
from reconciler.config.value_types import CRON_PATTERN, parse_cron
from tests.support.defects import no_defects

VALIDATOR = Draft7Validator(reconciler_schema.config_schema())


def taken(config):
    return not list(VALIDATOR.iter_errors(config))


def test_the_defaults_of_every_key_are_taken():
    text = config_text(ReconcilerSettings())
    config = yaml.safe_load(text)
    assert parse(text, "defaults") == ReconcilerSettings()
    assert taken(config)
    assert taken({})


def test_every_key_is_known_by_its_place():
    def names(schema, prefix=""):
        for name, inner in schema["properties"].items():
            if "properties" in inner:
                yield from names(inner, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}"

    assert set(names(reconciler_schema.config_schema())) == {key.name for key in KEYS}


RIGHT = (
    "every: 90s",
    "every: 1h30m",
    "every: 120",
    "cron: '*/5 8-18 * * mon-fri'",
    "cron: ''",
    "namespaces: [a, team-b]",
    "owners: [Job.batch.volcano.sh]",
    "evict_bare: true",
    "priority_ceiling: -5",
    "limits: {per_cycle: 0, per_owner: 0.25}",
    "rules: {refused: {mode: apply}, recover: {mode: 'off'}}",
    "ages: {failed: 0s}",
    "policies: [{name: ml, mode: apply, selector: {matchLabels: {team: ml}}}]",
    "policies: [{name: a, mode: plan, namespaces: [x], limits: {per_cycle: 5}}]",
    "policies: [{name: a, mode: plan, selector: {matchExpressions: [{key: a, operator: Exists}]}}]",
)
WRONG = (
    "every: 2 minutes",
    "every: ''",
    "every: 2w",
    "every: 0",
    "cron: '61 * * * *'",
    "cron: '* * * *'",
    "cron: '* 24 * * *'",
    "cron: '* * 0 * *'",
    "cron: '* * * smarch *'",
    "namespaces: a",
    "namespaces: [A]",
    "evict_bare: 'true'",
    "priority_ceiling: 1.5",
    "limits: {per_cycle: -1}",
    "limits: {per_owner: 1.5}",
    "limits: {per_nod: 1}",
    "limits: 3",
    "rules: {refused: {mode: yes please}}",
    "rules: {refuse: {mode: plan}}",
    "ages: {failed: -1s}",
    "policies: {name: ml}",
    "policies: [{name: ml, selector: {}}]",
    "policies: [{name: ml, mode: plan, selector: {matchlabels: {}}}]",
    "policies: [{name: ml, mode: plan, selector: {matchLabels: {team: true}}}]",
    "policies: [{name: ml, mode: plan, selector: {matchExpressions: [{key: a, operator: in}]}}]",
    "policies: [{name: ml, mode: plan, namespaces: [x], limits: {per_cycle: -1}}]",
)


@pytest.mark.parametrize("text", RIGHT)
def test_what_the_reconciler_takes_the_schema_takes(text):
    parse(text, "right")
    assert taken(yaml.safe_load(text))


@pytest.mark.parametrize("text", WRONG)
def test_what_the_reconciler_refuses_the_schema_refuses(text):
    with pytest.raises(ConfigError):
        parse(text, "wrong")
    assert not taken(yaml.safe_load(text))


def test_off_without_quotes_is_a_mode_too():
    assert taken(yaml.safe_load("rules: {refused: {mode: off}}"))


CRONS = (
    "* * * * *",
    "0 0 29 2 *",
    "5/10 0-23/2 1,15 JAN-Mar 7",
    "59 23 31 12 sat-sun",
    "00 09 * * *",
)


@no_defects
def test_each_cron_expression_has_the_form_of_the_schema():
    for text in CRONS:
        parse_cron(text)
        if not re.fullmatch(CRON_PATTERN, text):
            yield text


def test_definitions_are_replaced_once_and_again():
    text = '{\n    "schedule": {},\n    "reconcilerConfig": {},\n    "mounts": {}\n}'
    replaced = reconciler_schema.replaced(text)
    assert reconciler_schema.replaced(replaced) == replaced
    assert yaml.safe_load(replaced) == {**reconciler_schema.definitions(), "mounts": {}}
    with pytest.raises(ValueError, match="schedule"):
        reconciler_schema.replaced("{}")
