"""The configuration file: what it takes, what it refuses and where, and that it prints itself."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.config.settings import (
    KEYS,
    ConfigError,
    ReconcilerSettings,
    config_text,
    from_flag,
    parse,
    read,
    settings,
    value_of,
)
from reconciler.policy import Ages, Backoff, Limits, Mode, NamespaceLimits, NamespacePolicy, Policy
from reconciler.reasons import Rule
from vgpu.kube.label_selector import LabelRequirement, LabelSelector, Operator

BY_NAME = {key.name: key for key in KEYS}


def refusal(text):
    with pytest.raises(ConfigError) as info:
        parse(text, "r.yaml")
    return str(info.value)


def settings_or_error(text):
    try:
        return parse(text, "r.yaml")
    except ConfigError as error:
        return str(error)


# ---------------------------------------------------------------- any settings


def seconds(least, most):
    return st.integers(least * 1000, most * 1000).map(lambda milli: milli / 1000)


NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
PARTS = st.floats(0, 1).map(abs)
COUNTS = st.integers(0, 1_000_000)
FOUR = st.tuples(COUNTS, COUNTS, COUNTS, COUNTS)
CLOCKS = st.one_of(
    st.builds(lambda every: {"every": every}, seconds(1, 86400)),
    st.just({"cron": "*/10 8-18 * * mon-fri"}),
)


SELECTORS = st.builds(
    LabelSelector,
    match_labels=st.dictionaries(NAMES, NAMES, max_size=2),
    match_expressions=st.lists(
        st.one_of(
            st.builds(
                LabelRequirement,
                NAMES,
                st.sampled_from((Operator.IN, Operator.NOT_IN)),
                st.lists(NAMES, min_size=1, max_size=2).map(tuple),
            ),
            st.builds(
                LabelRequirement, NAMES, st.sampled_from((Operator.EXISTS, Operator.DOES_NOT_EXIST))
            ),
        ),
        max_size=2,
    ).map(tuple),
)
POLICIES = st.builds(
    NamespacePolicy,
    NAMES,
    st.sampled_from(("plan", "apply")),
    st.lists(NAMES, max_size=2).map(tuple),
    st.none() | SELECTORS,
    st.builds(NamespaceLimits, st.none() | COUNTS, st.none() | COUNTS),
)


@st.composite
def any_settings(draw):
    modes = draw(st.dictionaries(st.sampled_from(Rule), st.sampled_from(Mode)))
    first, longest = sorted((draw(seconds(1, 86400)), draw(seconds(1, 86400))))
    policy = Policy(
        modes={
            rule: modes[rule]
            for rule in Rule
            if rule in modes and modes[rule] is not Policy().mode(rule)
        },
        limits=Limits(*(draw(COUNTS) for _ in range(3)), draw(PARTS), draw(PARTS), *draw(FOUR)),
        ages=Ages(*(draw(seconds(0, 604800)) for _ in Ages.__struct_fields__)),
        backoff=Backoff(first, longest),
        owners=tuple(draw(st.lists(st.from_regex(r"[A-Z][A-Za-z]{0,9}", fullmatch=True)))),
        evict_bare=draw(st.booleans()),
        evict_running=draw(st.booleans()),
        namespaces=tuple(draw(st.lists(NAMES))),
        plan_namespaces=tuple(draw(st.lists(NAMES))),
        policies=tuple(draw(st.lists(POLICIES, max_size=3, unique_by=lambda each: each.name))),
        protected_namespaces=tuple(draw(st.lists(NAMES))),
        priority_ceiling=draw(st.integers(-(2**31), 2**31 - 1)),
    )
    return ReconcilerSettings(
        policy=policy,
        mode=draw(st.sampled_from((Mode.PLAN, Mode.APPLY))),
        deadline=draw(seconds(1, 3600)),
        **draw(CLOCKS),
    )


@pytest.mark.slow
@given(any_settings())
def test_any_settings_survive_printing_and_parsing(found):
    assert parse(config_text(found), "printed") == found


def test_an_empty_file_and_empty_sections_are_the_defaults():
    assert parse("", "r.yaml") == parse("---\n# nothing\n", "r.yaml") == ReconcilerSettings()
    assert parse("limits:\nrules:\n  refused:\n", "r.yaml") == ReconcilerSettings()


def test_every_setting_has_a_key_and_every_key_a_default_that_it_takes():
    structs = {"": ReconcilerSettings, "limits.": Limits, "ages.": Ages, "backoff.": Backoff}
    named = {prefix + name for prefix, one in structs.items() for name in one.__struct_fields__}
    named |= set(Policy.__struct_fields__) | {f"rules.{rule}.mode" for rule in Rule}
    assert set(BY_NAME) == named - {"policy", "modes", *(name.rstrip(".") for name in structs)}
    for key in KEYS:
        default = value_of(ReconcilerSettings(), key.name)
        for each in default if key.form.many else (default,):
            assert key.form.read(key.form.write(each)) == each, key.name
        assert key.help.endswith("."), key.name


def test_a_file_changes_what_it_names_and_nothing_else():
    found = parse("limits: {per_node: 2}\nrules: {recover: {mode: off}}\nages: {failed: 90}\n", "r")
    assert found.policy.limits == msgspec.structs.replace(Limits(), per_node=2, ended_per_node=2)
    assert found.policy.modes == {Rule.RECOVER: Mode.OFF}
    assert found.policy.ages == msgspec.structs.replace(Ages(), failed=90.0)


def test_a_rule_that_reports_is_let_act_after_an_age_of_its_own():
    found = parse("rules: {over_limit: {mode: apply}}\nages: {over_limit: 10m}\n", "r.yaml")
    assert ReconcilerSettings().policy.mode(Rule.OVER_LIMIT) is Mode.PLAN
    assert found.policy.mode(Rule.OVER_LIMIT) is Mode.APPLY
    assert (ReconcilerSettings().policy.ages.over_limit, found.policy.ages.over_limit) == (
        300.0,
        600.0,
    )


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("text", "where", "allowed"),
    [
        ("limits:\n  per_cycl: 3\n", "r.yaml:2:3: limits.per_cycl: ", "is it per_cycle?"),
        ("modee: plan", "r.yaml:1:1: modee: ", "is it mode?"),
        ("rules: {refusd: {mode: off}}", "r.yaml:1:9: rules.refusd: ", "is it refused?"),
        ("limits: {per_cycle: many}", "r.yaml:1:21: limits.per_cycle: ", "from 0 to 1000000"),
        ("limits: {per_cycle: '3'}", "r.yaml:1:21: limits.per_cycle: ", "not the text '3'"),
        ("limits: {per_cycle: -1}", "r.yaml:1:21: ", "a whole number from 0"),
        ("limits: {per_cycle: 1.5}", "r.yaml:1:21: ", "a whole number"),
        ("limits: {breaker: 1.1}", "r.yaml:1:19: limits.breaker: ", "a number from 0 to 1"),
        ("limits: {breaker: .nan}", "r.yaml:1:19: ", "a number from 0 to 1"),
        ("limits: 5", "r.yaml:1:9: limits: ", "must hold per_cycle, "),
        ("limits: {per_cycle: [1]}", "r.yaml:1:21: ", "not a list"),
        ("limits: {per_cycle: {a: 1}}", "r.yaml:1:21: ", "not a mapping"),
        ("limits:\n  per_node: 1\n  per_node: 2\n", "r.yaml:3:3: limits.per_node: ", "twice"),
        ("ages:\n  failed: soon\n", "r.yaml:2:11: ages.failed: ", "such as 90s or 2m, not 'soon'"),
        ("every: 0s", "r.yaml:1:8: every: ", "from 1s to 1d"),
        ("mode: off", "r.yaml:1:7: mode: ", "plan or apply, not 'off'"),
        ("evict_bare: yes", "r.yaml:1:13: evict_bare: ", "true or false"),
        ("evict_bare: 'true'", "r.yaml:1:13: ", "not the text 'true'"),
        ("owners: Job", "r.yaml:1:9: owners: ", "a list of kinds"),
        ("namespaces: [ml, A_b]", "r.yaml:1:18: namespaces: ", "not 'A_b'"),
        (
            "policies: [{name: ml, mode: plan}]",
            "r.yaml:1:12: policies: ",
            "needs namespaces or a selector",
        ),
        (
            "policies:\n- {name: ml, mode: apply, selectr: {}}",
            "r.yaml:2:3: policies: ",
            "unknown field `selectr`",
        ),
        (
            "policies: [{name: ml, mode: plan, selector: {}, mode: apply}]",
            "r.yaml:1:49: policies: mode: ",
            "it appears twice",
        ),
        (
            "policies: [{name: a, mode: plan, selector: {}}, {name: a, mode: plan, selector: {}}]",
            "r.yaml:1:11: policies: ",
            "two policies have the name a",
        ),
        ("policies: [ml]", "r.yaml:1:12: policies: ", "a list of policies, such as"),
        (
            "limits: {by_namespace: [ml]}",
            "r.yaml:1:25: limits.by_namespace: ",
            "such as ml=3, not 'ml'",
        ),
        ("cron: '61 * * * *'", "r.yaml:1:7: cron: ", "minute '61': must be from 0 to 59"),
        ("cron: '0 0 31 4 *'", "r.yaml:1:7: cron: ", "no such month has a day 31"),
        ("cron: */2 * * * *", "r.yaml:1:8: ", "is to be quoted"),
        ("every: 2m\ncron: '0 * * * *'", "r.yaml:2:7: cron: ", "not both"),
        ("backoff: {longest: 1m}", "r.yaml:1:20: backoff.longest: ", "must not be above"),
        ("- plan", "r.yaml:1:1: ", "must hold mode, every"),
        ("? [a]\n: 1", "r.yaml:1:3: ", "a key must be text"),
        ("mode: [", "r.yaml:1:8: ", "not YAML"),
        ("mode: plan\n---\nmode: apply", "r.yaml:2:1: ", "not YAML"),
        ('mode: "\\UFFFFFFFF"', "r.yaml: ", "not YAML"),
        ("mode: plan\nevery: \x07", "r.yaml:2:8: ", "not YAML"),
        ("[" * 5000, "r.yaml: ", "not YAML"),
    ],
)
def test_an_error_names_its_line_its_key_and_what_is_allowed(text, where, allowed):
    message = refusal(text)
    assert message.startswith(where)
    assert allowed in message


@given(st.text() | st.text("abcdefgilmnoprstuvy_:{}[]'\"&*!|>-0123456789 \n"))
def test_any_text_is_settings_or_an_error_that_names_the_file(text):
    found = settings_or_error(text)
    assert isinstance(found, ReconcilerSettings) or found.startswith("r.yaml")


@given(st.sampled_from(KEYS), st.text(max_size=12))
def test_any_value_is_taken_as_it_is_meant_or_refused_in_place(key, text):
    *sections, name = key.name.split(".")
    value = msgspec.json.encode([text] if key.form.many else text).decode()
    opened = "".join(f"{{{section}: " for section in sections)
    found = settings_or_error(f"{opened}{{{name}: {value}}}" + "}" * len(sections))
    if isinstance(found, str):
        assert found.startswith("r.yaml:1:")
    else:
        assert not key.form.bare
        assert found == parse(config_text(found), "printed")


# ---------------------------------------------------------------- flags


def test_flags_win_over_the_file():
    file = read("limits: {per_cycle: 3, per_node: 1}\nnamespaces: [a]\n", "r.yaml")
    flags = {
        "limits.per_cycle": from_flag(BY_NAME["limits.per_cycle"], ["7"], "--max-per-cycle"),
        "namespaces": from_flag(BY_NAME["namespaces"], ["b", "c"], "--namespace"),
    }
    policy = settings(file, flags).policy
    assert (policy.limits.per_cycle, policy.limits.per_node) == (7, 1)
    assert policy.namespaces == ("b", "c")


def test_a_flag_about_time_takes_the_place_of_the_files():
    every = {"every": from_flag(BY_NAME["every"], ["5m"], "--every")}
    cron = {"cron": from_flag(BY_NAME["cron"], ["0 * * * *"], "--cron")}
    assert settings(read("cron: '1 * * * *'", "r.yaml"), every) == ReconcilerSettings(every=300.0)
    assert settings(read("every: 5m", "r.yaml"), cron) == ReconcilerSettings(cron="0 * * * *")


def test_a_flags_error_names_the_flag():
    with pytest.raises(ConfigError, match=r"^--max-per-cycle: limits\.per_cycle: must be a whole"):
        from_flag(BY_NAME["limits.per_cycle"], ["x"], "--max-per-cycle")


@pytest.mark.parametrize("limit", ["per_cycle", "per_node", "per_namespace"])
def test_who_asks_for_fewer_actions_means_those_on_dead_pods_too(limit):
    def limit_of(text):
        return getattr(parse(f"limits: {{{text}}}", "r.yaml").policy.limits, f"ended_{limit}")

    usual = getattr(Limits(), f"ended_{limit}")
    assert limit_of(f"{limit}: 5") == 5
    assert limit_of(f"{limit}: 100000") == usual
    assert limit_of(f"{limit}: 5, ended_{limit}: 70") == 70
    assert limit_of(f"ended_{limit}: 70") == 70
