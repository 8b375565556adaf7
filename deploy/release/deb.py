"""A Debian package for machines without Kubernetes: the programs and the exporter's systemd unit.

It works on every Debian and Ubuntu with Python 3.11 or newer, without pip and without a network.
The unit is installed, but neither enabled nor started.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from deploy.project import Project
from deploy.release.bundle import link_bundle, make_equal
from deploy.release.commands import ReleaseError, run
from deploy.release.platforms import Platform
from deploy.release.source import SourceTree
from deploy.release.wheels import write_scripts

PACKAGES: Final = "/usr/lib/vgpu"
PROGRAM: Final = "/usr/bin/vgpu"
UNIT: Final = "vgpu-exporter.service"
VENV_PROGRAM: Final = "/opt/vgpu/bin/vgpu"
"""What the unit of deploy/systemd runs: the program of a venv."""

_IMPORT_FIRST: Final = f'sys.path.insert(0, "{PACKAGES}")\n'

CONTROL: Final = """\
Package: vgpu
Version: {version}
Architecture: {platform}
Maintainer: vgpu <{contact}>
Installed-Size: {kibibytes}
Depends: python3 (>= 3.11)
Section: admin
Priority: optional
Homepage: {address}
Description: metrics, repair and allocation for GPUs that are shared
 The exporter's systemd unit for machines without Kubernetes, and the command
 vgpu with all it needs but Python.
"""

POSTINST: Final = f"""\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
  if command -v py3compile >/dev/null; then py3compile -p vgpu {PACKAGES}; fi
  if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl try-restart {UNIT}
  fi
fi
"""

PRERM: Final = f"""\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  systemctl disable --now {UNIT}
fi
find {PACKAGES} -type d -name __pycache__ -prune -exec rm -r {{}} +
"""

_PACKED: Final = ("--root-owner-group", "-Zzstd", "-z9", "--threads-max=1")
"""Options of dpkg-deb: with more threads the bytes would depend on the machine. xz takes a third
less room and thirty times as long."""

SCRIPTS: Final = {"postinst": POSTINST, "prerm": PRERM}


def write_deb(
    file: Path, source: SourceTree, project: Project, platform: Platform, bundle: Path
) -> None:
    """Write the package of one platform from its bundle.

    Raises:
        ReleaseError: the unit does not run the program of the venv, or dpkg-deb failed.
    """
    with TemporaryDirectory() as temporary:
        root = Path(temporary, "root")
        link_bundle(bundle, root / PACKAGES[1:])
        write_scripts(source, root / "usr" / "bin", "/usr/bin/python3 -sP", _IMPORT_FIRST)
        _write(root / "usr/lib/systemd/system" / UNIT, unit(source))
        licence = (source.tree / "LICENSE").read_text()
        _write(root / "usr/share/doc/vgpu/copyright", licence)
        bytes_installed = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        control = CONTROL.format(
            version=source.version,
            platform=platform.name,
            contact=project.security_contact,
            kibibytes=bytes_installed // 1024,
            address=project.site,
        )
        _write(root / "DEBIAN" / "control", control)
        for name, text in SCRIPTS.items():
            _write(root / "DEBIAN" / name, text)
            (root / "DEBIAN" / name).chmod(0o755)
        make_equal(root, source.epoch)
        run("dpkg-deb", *_PACKED, "--build", root, file, env=source.env)


def unit(source: SourceTree) -> str:
    """The unit's text with the package's program, without the steps of an installation by hand."""
    text = (source.tree / "deploy" / "systemd" / UNIT).read_text()
    if VENV_PROGRAM not in text:
        raise ReleaseError(f"deploy/systemd/{UNIT} does not run {VENV_PROGRAM}")
    return text[text.index("[Unit]") :].replace(VENV_PROGRAM, PROGRAM)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
