"""The project's address: the one setting of where it is published, deploy/project.toml.

Everything that names an address is generated from it (deploy/generate.py, grafana/generate.py, and
docs/site_hooks.py for the site), so that an unset key costs a link and never makes a dead one.
"""

import re
import tomllib
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).resolve().parent.parent
FILE: Final = ROOT / "deploy" / "project.toml"

_HTTPS: Final = r"https://[a-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._~-]+)*"
_HOST: Final = r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?"
_ADDRESS: Final = (re.compile(_HTTPS), "an https address without a slash at its end")

RIGHT: Final = {
    "address": _ADDRESS,
    "site": _ADDRESS,
    "image": (
        re.compile(rf"(?=[^/]*[.:]|localhost/){_HOST}(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"),
        "an image repository with its registry and without a tag or digest",
    ),
    "security_contact": (
        re.compile(rf"{_HTTPS}|[A-Za-z0-9.+_-]+@[a-z0-9-]+(\.[a-z0-9-]+)+"),
        "a mail address or an https address",
    ),
}
"""Key -> the form of a value that is not empty, and that form in words."""


class ProjectError(ValueError):
    """The file cannot be used; the text names the file and the key."""


class Project(msgspec.Struct, frozen=True):
    """Where the project is published; an empty text is not set.

    Attributes:
        address: of the source repository.
        site: of the documentation's pages.
        image: the image's repository, without a tag.
        security_contact: who reads reports of vulnerabilities, a mail or https address.
    """

    address: str = ""
    site: str = ""
    image: str = ""
    security_contact: str = ""

    def missing(self) -> tuple[str, ...]:
        """The keys that the publisher still has to fill in."""
        return tuple(key for key in self.__struct_fields__ if not getattr(self, key))


def load(path: Path = FILE) -> Project:
    """The project of a file. Raises ProjectError, also for a file that cannot be read."""
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ProjectError(f"{path}: {error}") from error
    for key in values:
        if key not in RIGHT:
            raise ProjectError(f"{path}: {key}: unknown; the keys are {', '.join(RIGHT)}")
    for key, (form, words) in RIGHT.items():
        value = values.get(key)
        if not isinstance(value, str):
            raise ProjectError(f'{path}: {key}: a text is needed, "" if it is not published')
        if value and not form.fullmatch(value):
            raise ProjectError(f"{path}: {key}: {value!r} is not {words}")
    return Project(**values)
