"""JSON patches (RFC 6902), as the API server applies them. Pure."""

import copy
from typing import Any


class PatchError(ValueError):
    """An operation that cannot be applied; the message names it."""


def patched(target: Any, operations: object) -> Any:
    """A copy of the target with the operations applied, all or none. Raises PatchError.

    Operations are ``test``, ``add``, ``replace`` and ``remove``. As at the API server, a test for
    null holds where there is no value.
    """
    if not isinstance(operations, list):
        raise PatchError("the patch is not a list of operations")
    result = copy.deepcopy(target)
    for number, operation in enumerate(operations):
        try:
            result = _applied(result, operation)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise PatchError(f"operation {number} cannot be applied: {error}") from error
    return result


def _applied(target: Any, operation: Any) -> Any:
    verb, path = operation["op"], operation["path"]
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise PatchError(f"{path!r} is not a path")
    parts = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
    if not parts:
        raise PatchError("the whole object cannot be patched")
    parent = target
    for part in parts[:-1]:
        parent = parent[_key(parent, part)]
    key = _key(parent, parts[-1])
    if verb == "test":
        actual = parent.get(key) if isinstance(parent, dict) else parent[key]
        if actual != operation.get("value"):
            raise PatchError(f"the test of {path} failed: it is {actual!r}")
    elif verb == "remove":
        del parent[key]
    elif verb == "add" and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(operation["value"]))
    elif verb in ("add", "replace"):
        if verb == "replace" and key not in parent:
            raise PatchError(f"{path} does not exist")
        parent[key] = copy.deepcopy(operation["value"])
    else:
        raise PatchError(f"unknown operation {verb!r}")
    return target


def _key(parent: Any, part: str) -> Any:
    if isinstance(parent, list):
        return len(parent) if part == "-" else int(part)
    if not isinstance(parent, dict):
        raise PatchError(f"{part!r} is below a value that is no object")
    return part
