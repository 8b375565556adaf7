"""YAML of others, decoded: whatever PyYAML raises is one error. Pure.

PyYAML's constructors raise anything for a value that does not fit its tag: KeyError for
``!!bool x``, AttributeError for ``!!timestamp x``, OverflowError for some numbers.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import yaml

_Decoded = TypeVar("_Decoded")


class NotYamlError(ValueError):
    """Text that is no YAML; its text is the problem in one line, which may quote the content.

    Attributes:
        problem: what is wrong, without a place.
        line: the line of the problem, from 1; 0 if it is unknown.
        column: the column of the problem, from 1; 0 if it is unknown.
        is_duplicate_key: whether a key appears twice, if the loader refuses that.
    """

    def __init__(
        self, problem: str, line: int = 0, column: int = 0, *, is_duplicate_key: bool = False
    ) -> None:
        where = f"line {line}, column {column}: " if line else ""
        super().__init__(f"{where}{problem}")
        self.problem = problem
        self.line = line
        self.column = column
        self.is_duplicate_key = is_duplicate_key


def yaml_document(
    content: str | bytes, loader: "type[yaml.SafeLoader] | None" = None, *, fast: bool = False
) -> Any:
    """The only document of the content; None of empty content. Raises NotYamlError alone.

    ``fast`` takes libyaml's parser, if PyYAML has it: its messages are shorter.
    """
    import yaml  # noqa: PLC0415  # slow to import, and many programs read no YAML

    used = loader or _loader(fast=fast)
    return decoded(lambda: yaml.load(content, used))  # noqa: S506  # a SafeLoader


def yaml_documents(content: str | bytes, *, fast: bool = False) -> list[Any]:
    """All documents of the content. Raises NotYamlError alone."""
    import yaml  # noqa: PLC0415  # as above

    used = _loader(fast=fast)
    return decoded(lambda: list(yaml.load_all(content, used)))  # a SafeLoader


def _loader(*, fast: bool) -> Any:
    import yaml  # noqa: PLC0415  # as above

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader) if fast else yaml.SafeLoader


def decoded(decode: Callable[[], _Decoded]) -> _Decoded:
    """What PyYAML makes of a text or of a node. Raises NotYamlError alone."""
    import yaml  # noqa: PLC0415  # as above

    from vgpu.io.unique_keys import DuplicateKeyError  # noqa: PLC0415  # imports yaml

    try:
        return decode()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(_one_line(each) for each in (error.context, error.problem) if each)
        raise NotYamlError(
            problem or "not YAML",
            mark.line + 1 if mark else 0,
            mark.column + 1 if mark else 0,
            is_duplicate_key=isinstance(error, DuplicateKeyError),
        ) from error
    except RecursionError as error:
        raise NotYamlError("it is nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise NotYamlError(_one_line(str(error)) or "not YAML") from error
    except Exception as error:
        raise NotYamlError("a value does not fit its tag") from error


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
