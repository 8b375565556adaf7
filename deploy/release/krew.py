"""``kubectl vgpu``: an archive for each platform, and the manifest by which krew installs it."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml

from deploy.project import Project
from deploy.release.bundle import link_bundle
from deploy.release.layers import pack, sha256
from deploy.release.platforms import Platform
from deploy.release.source import SourceTree
from deploy.release.wheels import write_scripts

PLUGIN: Final = "kubectl-vgpu"

_IMPORT_FIRST: Final = """\
if sys.version_info < (3, 11):
    sys.exit("kubectl vgpu needs Python 3.11 or newer")
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "lib"))
"""

DESCRIPTION: Final = (
    "Shows which container holds which GPU, what waits and why, and the free capacity, for GPUs"
    " that are shared by Volcano vGPU, HAMi, gpushare, gpu-manager or KubeShare. Finds pods, locks"
    " and claims that failed, got stuck or were forgotten, and repairs them. Nothing needs to be"
    " installed in the cluster."
)


def write_plugin(file: Path, source: SourceTree, bundle: Path) -> None:
    """Write the archive of one platform: the program ``kubectl-vgpu`` and its bundle."""
    with TemporaryDirectory() as temporary:
        root = Path(temporary, "root")
        link_bundle(bundle, root / "lib")
        write_scripts(source, root / "bin", "/usr/bin/env -S python3 -sP", _IMPORT_FIRST)
        (root / "bin" / PLUGIN).rename(root / PLUGIN)
        shutil.rmtree(root / "bin")
        shutil.copy(source.tree / "LICENSE", root)
        pack(root, file, source.epoch)


def manifest(
    source: SourceTree, project: Project, downloads: str, archives: Mapping[Platform, Path]
) -> str:
    """The manifest for krew; ``downloads`` is the address of the folder that has the archives."""
    platforms = [
        {
            "selector": {"matchLabels": {"os": "linux", "arch": platform.name}},
            "uri": f"{downloads}/{archive.name}",
            "sha256": sha256(archive),
            "bin": PLUGIN,
        }
        for platform, archive in archives.items()
    ]
    document: dict[str, Any] = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "vgpu"},
        "spec": {
            "version": f"v{source.version}",
            "homepage": project.site,
            "shortDescription": "Show and repair GPUs that are shared by pods",
            "description": DESCRIPTION,
            "caveats": "Needs Python 3.11 or newer as python3.",
            "platforms": platforms,
        },
    }
    return yaml.safe_dump(document, sort_keys=False, width=110)
