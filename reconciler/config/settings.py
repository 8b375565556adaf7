"""The configuration file: every key once, in one table, with its meaning, its type and its flag.

Strict: an unknown key, a duplicate key, a wrong type and a value out of range are each refused
with their place and with what is allowed. Flags have the same types and win over the file.
The output of :func:`config_text` is itself such a file. Pure.
"""

import difflib
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import yaml

from reconciler.config.value_types import (
    ValueType,
    choice,
    cron,
    duration,
    label_key,
    names,
    part,
    policies,
    whole,
    yes_no,
)
from reconciler.policy import DEFAULT_MODES, OBSERVED, Ages, Backoff, Limits, Mode, Policy
from reconciler.reasons import Rule
from vgpu.io.yaml_documents import decoded
from vgpu.model.documentation import page


class ReconcilerSettings(msgspec.Struct, frozen=True):
    """The policy, and how the long-running program uses it.

    Attributes:
        policy: see there.
        mode: whether ``run`` applies its plans.
        every: seconds between two cycles.
        cron: when cycles begin, in place of ``every``; "" is not used.
        deadline: maximum time to apply one plan, in seconds.
    """

    policy: Policy = Policy()
    mode: Mode = Mode.PLAN
    every: float = 120.0
    cron: str = ""
    deadline: float = 120.0


class ConfigError(Exception):
    """A configuration that cannot be used.

    Attributes:
        place: ``file:line:column``, or the flag.
        key: dotted; "" for the file as a whole.
        problem: what is wrong, and what is allowed.
    """

    def __init__(self, place: str, key: str, problem: str) -> None:
        super().__init__(": ".join(filter(None, (place, key, problem))))
        self.place = place
        self.key = key
        self.problem = problem


# ---------------------------------------------------------------- the table


class Key(msgspec.Struct, frozen=True):
    """One key: its dotted name, its form, what it is; ``flag`` is the flag that also sets it."""

    name: str
    form: ValueType
    help: str
    flag: str = ""


_HOUR, _DAY, _WEEK = 3600.0, 86400.0, 604800.0
_MANY: Final = 1_000_000
_NAMESPACE: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_KIND: Final = r"[A-Za-z][A-Za-z0-9]{0,62}(\.[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?"
_AGE: Final = duration(0.0, _WEEK)

KEYS: Final = (
    Key(
        "mode",
        choice(Mode.PLAN, Mode.APPLY),
        "Whether `run` only reports its plans, or applies them.",
        "--mode",
    ),
    Key("every", duration(1.0, _DAY), "Interval between two cycles of `run`.", "--every"),
    Key(
        "cron",
        cron(),
        "When cycles of `run` begin, in UTC, in place of `every`; weekdays are 0 or 7 for Sunday.",
        "--cron",
    ),
    Key("deadline", duration(1.0, _HOUR), "Maximum time to apply one plan."),
    Key(
        "namespaces",
        names("namespaces", _NAMESPACE),
        "Only pods of these namespaces are touched; all, if none is named.",
        "--namespace",
    ),
    Key(
        "plan_namespaces",
        names("namespaces", _NAMESPACE),
        "What would be done to pods of these namespaces is planned, and never applied.",
        "--plan-namespace",
    ),
    Key(
        "policies",
        policies(),
        "What holds for the pods of some namespaces, by name, by a label selector of Namespaces, or"
        " both; the first policy that matches counts. Its `mode` is `plan` or `apply`, its `limits`"
        " are `per_cycle`, of all its namespaces together, and `per_namespace`.",
    ),
    Key(
        "protected_namespaces",
        names("namespaces", _NAMESPACE),
        "Pods of these are never touched, except for KubeShare's own holder pods.",
    ),
    Key(
        "owners",
        names("kinds", _KIND),
        "Kinds of controllers whose pods may be evicted, living ones too, with all consequences; a"
        " Job counts an eviction as a failure. `Kind`, or `Kind.group` such as"
        " `Job.batch.volcano.sh`: without a group `Job` and the like are Kubernetes' own. For"
        f" Failed pods of other kinds see {page('reconcile-owners')}.",
    ),
    Key(
        "evict_bare",
        yes_no(),
        "Also evict pods without a controller, which are not recreated.",
        "--evict-bare",
    ),
    Key(
        "evict_running",
        yes_no(),
        "Also evict running pods, where a rule proposes it.",
        "--evict-running",
    ),
    Key(
        "act_on_schemes",
        names(f"sharing systems ({', '.join(OBSERVED)})", f"({'|'.join(OBSERVED)})"),
        "Sharing systems that vgpu only observes, and whose pods may be evicted all the same. For a"
        " system that is not named, what a rule would do to its pods is planned, and not applied."
        " Pods that have ended are evicted in any case; those of KAI only if kai is named.",
        "--act-on-scheme",
    ),
    Key(
        "priority_ceiling",
        whole(-(2**31), 2**31 - 1),
        "Pods of a higher priority are never evicted.",
    ),
    Key(
        "team_key",
        label_key(),
        "The label of a Namespace that has its team, for metrics by team. Without such a label an"
        " annotation of this name counts, if the name begins with `vgpu.dev/`.",
    ),
    Key(
        "queues",
        yes_no(),
        "Whether to read the queues of Kueue, Volcano and KAI Scheduler, for metrics by queue.",
    ),
    *(
        Key(
            f"rules.{rule}.mode",
            choice(Mode.OFF, Mode.PLAN, Mode.APPLY),
            f"{rule.explanation}.",
            "--rule",
        )
        for rule in Rule
    ),
    Key(
        "limits.per_cycle",
        whole(0, _MANY),
        "Actions in one cycle; attempts count, not only successes.",
        "--max-per-cycle",
    ),
    Key(
        "limits.per_node",
        whole(0, _MANY),
        "Actions on one node in one cycle.",
        "--max-per-node",
    ),
    Key(
        "limits.per_namespace",
        whole(0, _MANY),
        "Actions in one namespace in one cycle.",
        "--max-per-namespace",
    ),
    Key(
        "limits.by_namespace",
        names("limits such as ml=3", rf"{_NAMESPACE}=\d{{1,6}}"),
        "Limits of single namespaces in place of `limits.per_namespace`, such as `ml=3`.",
    ),
    Key(
        "limits.per_owner",
        part(),
        "Part of a controller's living pods that may be evicted in one cycle; at least one.",
    ),
    Key(
        "limits.ended_per_cycle",
        whole(0, _MANY),
        "Evictions in one cycle of pods that have ended and can never run again. These evictions"
        " take nothing from other pods and have a limit of their own; the namespaces take turns."
        " If it is not set, a lower `limits.per_cycle` that is set applies.",
    ),
    Key(
        "limits.ended_per_node",
        whole(0, _MANY),
        "The same on one node; likewise with `limits.per_node`.",
    ),
    Key(
        "limits.ended_per_namespace",
        whole(0, _MANY),
        "The same in one namespace; likewise with `limits.per_namespace`.",
    ),
    Key(
        "limits.breaker",
        part(),
        "Part of the living pods with shared GPUs that may need an action at once; if more do,"
        " nothing is done. Tidying and repairs of one rule in one namespace count once, and so do"
        " a node's folders.",
    ),
    Key(
        "limits.breaker_floor",
        whole(0, _MANY),
        "Number of objects that may always need an action without tripping the breaker.",
    ),
    Key("ages.failed", _AGE, "Minimum age of a failure before an action."),
    Key(
        "ages.assumed",
        _AGE,
        "Minimum age of a reservation that was never allocated. Below the schedulers' own"
        " time-outs (300 s), a pod that is just being served may be evicted.",
    ),
    Key("ages.lock", _AGE, "Minimum age of a node lock whose owner is gone."),
    Key(
        "ages.handshake",
        _AGE,
        "Minimum age of a handshake that a scheduler considers dead although the plugin is alive.",
    ),
    Key("ages.drift", _AGE, "Minimum age of a disagreement about a GPU."),
    Key(
        "ages.over_limit",
        _AGE,
        "Minimum time for which a container uses more memory than was allocated to it.",
    ),
    Key("ages.orphan", _AGE, "Minimum age of an object that has lost its owner."),
    Key("ages.terminating", _AGE, "Time after which a pod whose deletion is due is reported."),
    Key("ages.held", _AGE, "Time after which a share whose container cannot run is reported."),
    Key(
        "ages.over_quota",
        _AGE,
        "Time for which a namespace has to exceed its quota before an action.",
    ),
    Key(
        "ages.idle",
        _AGE,
        "Time without a kernel after which a container with a share is reported, with --scope node;"
        " 0s never.",
        "--idle-after",
    ),
    Key(
        "ages.clock_skew",
        _AGE,
        "Maximum error of another machine's clock; added to all ages.",
    ),
    Key(
        "backoff.first",
        duration(1.0, _DAY),
        "Time for which the owner's pods on that node are skipped after an eviction; doubled each"
        " time.",
    ),
    Key("backoff.longest", duration(1.0, _WEEK), "Maximum of that time."),
)

_BY_NAME: Final = {key.name: key for key in KEYS}
SECTIONS: Final = frozenset(
    key.name[:index] for key in KEYS for index, char in enumerate(key.name) if char == "."
)

# ---------------------------------------------------------------- reading

_QUOTE: Final = "; text that begins with * is to be quoted"


class Setting(msgspec.Struct, frozen=True):
    """A configured value, and its place."""

    value: Any
    place: str


Values = Mapping[str, Setting]
"""Settings by the key's dotted name."""


def parse(text: str, name: str) -> ReconcilerSettings:
    """The settings of a file's text; ``name`` is its name in errors. Raises ConfigError."""
    return settings(read(text, name))


def read(text: str, name: str) -> Values:
    """The settings in a file's text. Raises ConfigError."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        hint = _QUOTE if "alias" in str(error.context) else ""
        raise ConfigError(_place(name, mark), "", f"not YAML: {error.problem}{hint}") from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise ConfigError(f"{name}:{line}:{column}", "", f"not YAML: {error.reason}") from error
    except Exception as error:  # PyYAML raises anything for odd escapes
        raise ConfigError(name, "", "not YAML") from error
    return {} if root is None else dict(_mapping(root, "", name))


def from_flag(key: Key, texts: Iterable[str], flag: str) -> Setting:
    """The setting of a flag. Raises ConfigError."""
    values = [_value(key, text, flag) for text in texts]
    return Setting(tuple(values) if key.form.many else values[-1], flag)


def _mapping(node: yaml.Node, section: str, name: str) -> Iterator[tuple[str, Setting]]:
    prefix = f"{section}." if section else ""
    if not isinstance(node, yaml.MappingNode):
        if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"):
            return  # everything below it is commented out
        problem = f"must hold {', '.join(_children(section))}"
        raise ConfigError(_place(name, node.start_mark), section, problem)
    seen: set[str] = set()
    for key_node, value in node.value:
        place = _place(name, key_node.start_mark)
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(place, section, "a key must be text")
        key = f"{prefix}{key_node.value}"
        if key in seen:
            raise ConfigError(place, key, "it appears twice; remove one")
        seen.add(key)
        if key in SECTIONS:
            yield from _mapping(value, key, name)
        elif key in _BY_NAME:
            yield key, _setting(_BY_NAME[key], value, name)
        else:
            raise ConfigError(place, key, _unknown(key_node.value, section))


def _setting(key: Key, node: yaml.Node, name: str) -> Setting:
    place = _place(name, node.start_mark)
    if not key.form.many:
        return Setting(_scalar(key, node, name), place)
    if not isinstance(node, yaml.SequenceNode):
        raise _wrong(key, node, place)
    one = _mapped if key.form.mapping else _scalar
    return Setting(tuple(one(key, item, name) for item in node.value), place)


def _mapped(key: Key, node: yaml.Node, name: str) -> Any:
    """A value that is a mapping."""
    place = _place(name, node.start_mark)
    if not isinstance(node, yaml.MappingNode):
        raise _wrong(key, node, place)
    try:
        _expect_single_keys(node, name, key.name)
        text = json.dumps(decoded(lambda: yaml.SafeLoader("").construct_document(node)))
        return key.form.read(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(place, key.name, str(error)) from error


def _expect_single_keys(node: yaml.Node, name: str, key: str) -> None:
    """Raises ConfigError for a key that appears twice, at any depth."""
    seen: set[str] = set()
    for item in node.value if isinstance(node, yaml.CollectionNode) else ():
        for part_node in item if isinstance(item, tuple) else (item,):
            _expect_single_keys(part_node, name, key)
        if isinstance(item, tuple):
            inner = str(item[0].value)
            if inner in seen:
                place = _place(name, item[0].start_mark)
                raise ConfigError(place, f"{key}: {inner}", "it appears twice; remove one")
            seen.add(inner)


def _scalar(key: Key, node: yaml.Node, name: str) -> Any:
    place = _place(name, node.start_mark)
    quoted = key.form.bare and getattr(node, "style", None) is not None
    if not isinstance(node, yaml.ScalarNode) or quoted:
        raise _wrong(key, node, place)
    return _value(key, node.value, place)


def _value(key: Key, text: str, place: str) -> Any:
    try:
        return key.form.read(text)
    except ValueError as error:
        raise _refused(key, place, repr(_short(text)), str(error)) from error


def _wrong(key: Key, node: yaml.Node, place: str) -> ConfigError:
    if isinstance(node, yaml.ScalarNode):
        actual = f"the text {_short(node.value)!r}"
    else:
        actual = "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
    return _refused(key, place, actual)


def _refused(key: Key, place: str, actual: str, why: str = "") -> ConfigError:
    """``why`` is in the message where it has more than the value itself."""
    more = f" ({why})" if " " in why and not why.startswith(actual) else ""
    return ConfigError(place, key.name, f"must be {key.form.allowed}, not {actual}{more}")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"


def _place(name: str, mark: yaml.Mark | None) -> str:
    return name if mark is None else f"{name}:{mark.line + 1}:{mark.column + 1}"


def _children(section: str) -> list[str]:
    """The keys directly below a section."""
    depth = section.count(".") + 1 if section else 0
    inside = [
        key.name.split(".") for key in KEYS if not section or key.name.startswith(section + ".")
    ]
    return list(dict.fromkeys(parts[depth] for parts in inside))


def _unknown(word: str, section: str) -> str:
    allowed = _children(section)
    near = difflib.get_close_matches(word, allowed, n=1)
    meant = f"is it {near[0]}? " if near else ""
    return f"unknown key; {meant}allowed here: {', '.join(allowed)}"


# ---------------------------------------------------------------- values <-> settings

_OWN: Final = ("mode", "every", "cron", "deadline")
_RULES: Final = {str(rule): rule for rule in Rule}
_BOUNDING: Final = frozenset({"limits.per_cycle", "limits.per_node", "limits.per_namespace"})
_GROUPS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "limits": Limits,
    "ages": Ages,
    "backoff": Backoff,
}


def settings(*layers: Values) -> ReconcilerSettings:
    """The settings of all layers together; a later one wins. Raises ConfigError."""
    merged: dict[str, Setting] = {}
    for layer in layers:
        clocks = [name for name in ("every", "cron") if name in layer]
        if len(clocks) > 1:
            raise ConfigError(layer["cron"].place, "cron", "give it or every, not both")
        if clocks:
            merged = {
                name: setting for name, setting in merged.items() if name not in ("every", "cron")
            }
        merged |= layer
    values = {name: setting.value for name, setting in merged.items()}
    for name in _BOUNDING & values.keys():  # who asks for fewer actions means all of them
        ended = f"limits.ended_{name.removeprefix('limits.')}"
        values.setdefault(ended, min(values[name], value_of(ReconcilerSettings(), ended)))
    modes = {}
    for rule in Rule:
        mode = values.pop(f"rules.{rule}.mode", DEFAULT_MODES[rule])
        if mode is not DEFAULT_MODES[rule]:
            modes[rule] = mode
    own = {name: values.pop(name) for name in _OWN if name in values}
    groups: dict[str, Any] = {}
    for group, struct in _GROUPS.items():
        inside = {
            field: values.pop(f"{group}.{field}")
            for field in struct.__struct_fields__
            if f"{group}.{field}" in values
        }
        groups[group] = struct(**inside)
    result = ReconcilerSettings(policy=Policy(modes=modes, **groups, **values), **own)
    policy_names = [policy.name for policy in result.policy.policies]
    if twice := next((name for name in policy_names if policy_names.count(name) > 1), ""):
        problem = f"two policies have the name {twice}"
        raise ConfigError(merged["policies"].place, "policies", problem)
    backoff = result.policy.backoff
    if backoff.first > backoff.longest:
        key = "backoff.first" if "backoff.first" in merged else "backoff.longest"
        raise ConfigError(merged[key].place, key, "backoff.first must not be above backoff.longest")
    return result


def value_of(current: ReconcilerSettings, name: str) -> Any:
    """The value of a key."""
    head, *rest = name.split(".")
    if head == "rules":
        return current.policy.mode(_RULES[rest[0]])
    value: Any = current if head in _OWN else current.policy
    for field in (head, *rest):
        value = getattr(value, field)
    return value


# ---------------------------------------------------------------- printing

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9.-]*", re.ASCII)
_TAKEN: Final = frozenset({"on", "off", "yes", "no", "true", "false", "null", "y", "n"})
"""Words that other readers of YAML do not read as text."""


def config_text(current: ReconcilerSettings) -> str:
    """The settings as a file with every key and its meaning."""
    lines = ["# The configuration of vgpu reconcile: every key, as it is in force."]
    section = ""
    for key in KEYS:
        head, _, rest = key.name.rpartition(".")
        if key.name == ("cron" if not current.cron else "every"):
            rest = f"# {rest}"  # one of the two is in force
        group = head.partition(".")[0]
        if group != section:
            lines += ["", f"{group}:"]
            section = group
        elif not group:
            lines.append("")
        indent = "  " * bool(group)
        lines += textwrap.wrap(
            key.help, 98, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
        value = written(key, value_of(current, key.name))
        if group == "rules":
            lines.append(f"{indent}{head.rpartition('.')[2]}: {{{rest}: {value}}}")
        else:
            lines.append(f"{indent}{rest}: {value}")
    return "\n".join(lines) + "\n"


def written(key: Key, value: Any) -> str:
    """A value in the form of the file."""
    if key.form.many:
        texts = (key.form.write(item) for item in value)
        return f"[{', '.join(texts if key.form.mapping else map(_quoted, texts))}]"
    text = key.form.write(value)
    return text if key.form.bare else _quoted(text)


def _quoted(text: str) -> str:
    """The text, in quotes unless every reader of YAML reads it as text or as a duration."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _TAKEN
    return text if plain or _is_duration(text) else json.dumps(text)


def _is_duration(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9.]+[a-z][0-9a-z]*", text, re.ASCII)) and "e" not in text
