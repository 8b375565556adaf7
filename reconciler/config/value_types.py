"""The types of values in the configuration: text in, checked value out, and back. Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from reconciler.config.cron import PATTERN as CRON_PATTERN
from reconciler.config.cron import parse_cron
from reconciler.namespace_policy import NamespacePolicy
from reconciler.policy import Mode
from vgpu.model.durations import PATTERN as DURATION_PATTERN
from vgpu.model.durations import duration_text, parse_duration


class ValueType(msgspec.Struct, frozen=True):
    """A type of values.

    Attributes:
        allowed: the allowed values, in words that follow "must be".
        read: text -> value; raises ValueError.
        write: value -> text.
        many: whether the key has a list of them.
        bare: whether the file has it without quotes.
        mapping: whether one value is a mapping, which ``read`` and ``write`` have as JSON.
        schema: JSON schema of one value; looser than ``read`` where a schema cannot be as strict.
    """

    allowed: str
    read: Callable[[str], Any]
    schema: Mapping[str, Any]
    write: Callable[[Any], str] = str
    many: bool = False
    bare: bool = False
    mapping: bool = False


_WHOLE: Final = re.compile(r"-?\d{1,10}", re.ASCII)
_LABEL_KEY: Final = re.compile(
    r"([a-z0-9][-a-z0-9.]{0,251}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_DECIMAL: Final = re.compile(r"\d{1,3}(\.\d{1,20})?(e-\d{1,3})?", re.ASCII)


def whole(least: int, most: int) -> ValueType:
    """A whole number."""

    def read(text: str) -> int:
        if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
            raise ValueError(text)
        return int(text)

    schema = {"type": "integer", "minimum": least, "maximum": most}
    return ValueType(f"a whole number from {least} to {most}", read, schema, bare=True)


def part() -> ValueType:
    """A number from 0 to 1."""

    def read(text: str) -> float:
        if not _DECIMAL.fullmatch(text) or float(text) > 1:
            raise ValueError(text)
        return float(text)

    schema = {"type": "number", "minimum": 0, "maximum": 1}
    return ValueType("a number from 0 to 1", read, schema, repr, bare=True)


def duration(least: float, most: float) -> ValueType:
    """Seconds."""

    def read(text: str) -> float:
        seconds = parse_duration(text)
        if not least <= seconds <= most:
            raise ValueError(text)
        return seconds

    allowed = f"a duration from {duration_text(least)} to {duration_text(most)}, such as 90s or 2m"
    bounds = {"minimum": least, "maximum": most}
    form = {"pattern": DURATION_PATTERN, "minLength": 1}
    schema = {"type": ["string", "number"], **form, **bounds}
    return ValueType(allowed, read, schema, duration_text)


def yes_no() -> ValueType:
    """Either true or false."""
    values = {"true": True, "false": False}

    def read(text: str) -> bool:
        if text not in values:
            raise ValueError(text)
        return values[text]

    schema = {"type": "boolean"}
    return ValueType("true or false", read, schema, lambda value: str(value).lower(), bare=True)


def choice(*values: Mode) -> ValueType:
    """One of these values."""
    names = {str(value): value for value in values}

    def read(text: str) -> Mode:
        if text not in names:
            raise ValueError(text)
        return names[text]

    schema = {"enum": list(names)}
    return ValueType(f"{', '.join(list(names)[:-1])} or {values[-1]}", read, schema)


def names(what: str, pattern: str) -> ValueType:
    """A list of names."""
    compiled = re.compile(pattern, re.ASCII)

    def read(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(text)
        return text

    schema = {"type": "string", "pattern": f"^{pattern}$"}
    return ValueType(f"a list of {what}", read, schema, many=True)


def label_key() -> ValueType:
    """The key of a label: a name of at most 63 characters, after a DNS name and a slash or not."""

    def read(text: str) -> str:
        if not _LABEL_KEY.fullmatch(text):
            raise ValueError(text)
        return text

    schema = {"type": "string", "pattern": f"^{_LABEL_KEY.pattern}$"}
    return ValueType("the key of a label, such as team or example.com/team", read, schema)


def cron() -> ValueType:
    """A cron expression, or none."""

    def read(text: str) -> str:
        if text:
            parse_cron(text)
        return text

    schema = {"type": "string", "pattern": f"^({CRON_PATTERN})?$"}
    return ValueType("a cron expression of five fields, such as '*/2 * * * *', or ''", read, schema)


def policies() -> ValueType:
    """A list of policies by namespace."""

    def read(text: str) -> NamespacePolicy:
        try:
            return msgspec.json.decode(text, type=NamespacePolicy)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from error

    def write(policy: NamespacePolicy) -> str:
        return msgspec.json.encode(policy).decode()

    allowed = (
        "a list of policies, such as {name: ml, selector: {matchLabels: {team: ml}}, mode: plan}"
    )
    return ValueType(allowed, read, _inlined(NamespacePolicy), write, many=True, mapping=True)


def _inlined(struct: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The JSON schema of a struct, without references and texts."""
    whole_schema = msgspec.json.schema(struct)
    definitions = whole_schema["$defs"]

    def inline(schema: Any) -> Any:
        if isinstance(schema, list):
            return [inline(item) for item in schema]
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            schema = definitions[schema["$ref"].rpartition("/")[2]]
        return {
            key: inline(value)
            for key, value in schema.items()
            if key not in ("title", "description", "default") and value != []
        }

    return dict(inline({"$ref": whole_schema["$ref"]}))
