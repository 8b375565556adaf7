"""The reconciler's configuration as JSON schema, from the table of its keys. Pure.

The chart's schema holds it, so that helm refuses a wrong key where it stands; what a schema cannot
say (a month without a day 31) the reconciler refuses when it starts.
"""

import json
import re
from typing import Any, Final

from reconciler.config.settings import KEYS, Key
from reconciler.config.value_types import CRON_PATTERN

_MACROS: Final = "@(yearly|annually|monthly|weekly|daily|midnight|hourly)"


def config_schema() -> dict[str, Any]:
    """The schema of reconciler.config and reconciler.node.config."""
    root = _section()
    for key in KEYS:
        *sections, name = key.name.split(".")
        place = root
        for section in sections:
            place = place["properties"].setdefault(section, _section())
        place["properties"][name] = _value(key)
    return root


def definitions() -> dict[str, Any]:
    """The definitions of the chart's schema that come from the reconciler."""
    return {
        "schedule": {"type": "string", "pattern": f"^({_MACROS}|{CRON_PATTERN})$"},
        "reconcilerConfig": config_schema(),
    }


def replaced(schema: str) -> str:
    """The text of values.schema.json with these definitions; each begins on a line of its own."""
    for name, definition in definitions().items():
        body = json.dumps(definition, indent=2).replace("\n", "\n    ")
        line = re.compile(rf'^    "{name}": \{{(\}}|.*?^    \}}),$', re.DOTALL | re.MULTILINE)
        parts = line.split(schema)
        if len(parts) != 3:  # before, the pattern's group, behind
            raise ValueError(f"values.schema.json: the definition {name} is needed once")
        schema = f'{parts[0]}    "{name}": {body},{parts[2]}'
    return schema


def _section() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _value(key: Key) -> dict[str, Any]:
    schema = dict(key.form.schema)
    if "off" in schema.get("enum", ()):
        schema["enum"] = [*schema["enum"], False]  # `off` without quotes is false in YAML 1.1
    return {"type": "array", "items": schema} if key.form.many else schema
