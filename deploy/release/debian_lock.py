"""Writes requirements/debian.lock: apt resolves the image's packages for each platform.

apt verifies the mirror's signed indexes; the hashes of the packages are in the indexes. The
machine's own packages, sources and settings play no part.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import unquote, urlsplit

from deploy.release.commands import run
from deploy.release.debian import MIRROR, PACKAGES, SETUP_ONLY, SUITE, DebianLock, DebianPackage

KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"

SOURCES: Final = "".join(
    f"deb [signed-by={KEYRING}] {MIRROR}/{archive} {suite} main\n"
    for archive, suite in (
        ("debian", SUITE),
        ("debian", f"{SUITE}-updates"),
        ("debian-security", f"{SUITE}-security"),
    )
)

_LINE: Final = re.compile(r"'(?P<url>\S+)' (?P<file>\S+) \d+ SHA256:(?P<sha256>[0-9a-f]{64})")


def resolve(platforms: tuple[str, ...]) -> DebianLock:
    """A lock of what the mirror has now. Raises ReleaseError where apt fails."""
    snapshot = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    packages: list[DebianPackage] = []
    for platform in platforms:
        with TemporaryDirectory() as folder:
            packages += parsed(platform, _simulated(platform, Path(folder)))
    return DebianLock(snapshot, tuple(sorted(packages)))


def parsed(platform: str, text: str) -> Iterator[DebianPackage]:
    """The packages in the output of ``apt-get --print-uris``, without those for setup only."""
    for line in _LINE.finditer(text):
        name, version, _ = unquote(line["file"]).split("_")
        if name not in SETUP_ONLY:
            path = unquote(urlsplit(line["url"]).path).lstrip("/")
            yield DebianPackage(platform, name, version, line["sha256"], path)


def _simulated(platform: str, folder: Path) -> str:
    """What apt would fetch for a machine of ``platform`` with no package installed."""
    (folder / "sources.list").write_text(SOURCES)
    (folder / "status").touch()
    (folder / "lists" / "partial").mkdir(parents=True)
    options = {
        "APT::Architecture": platform,
        "APT::Architectures": platform,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",  # apt's own user cannot read a temporary folder
        "Acquire::ForceHash": "SHA256",
        "Acquire::Languages": "none",
        "Dir::Cache": folder,
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State": folder,
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": folder / "status",
    }
    apt = ["apt-get", "-qq", *(f"--option={name}={value}" for name, value in options.items())]
    run(*apt, "update")
    return run(*apt, "--yes", "--print-uris", "install", *PACKAGES)
