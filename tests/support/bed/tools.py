"""The programs of the test bed: built once from pinned Go modules, then taken from a cache.

    tools = ensure()  # ToolsMissing says in one line what to do
    subprocess.run([tools.path(Tool.KUBECTL), "version", "--client"])
    folder = module_folder("crds")  # files of a pinned Go module, as they are

``make cluster-tools`` makes all of it. ``ensure`` makes what is missing only in CI and where
VGPU_TESTBED_BUILD is 1, as in `make test` as root. The cache has one folder for each recipe, named
after the hash of what went in and the Go that built it. A folder is made beside its place, under a
lock, and renamed into it when it is whole.

Those who have the programs name their folder in VGPU_TESTBED_BIN (all of them, in it or one level
below) or KUBEBUILDER_ASSETS (etcd, kube-apiserver and kubectl, as envtest does).
"""

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import click

from tests.support.bed.gomodules import Recipe, ToolsMissing, find_go, pinned_version
from tests.support.bed.toolcache import Cache, Progress

__all__ = ["RECIPES", "Tool", "Tools", "ToolsMissing", "ensure", "kueue", "module_folder", "newer"]

MODULES = Path(__file__).resolve().parent / "go"
KUBERNETES = pinned_version(MODULES / "kube", "k8s.io/kubernetes")
MAJOR, MINOR = KUBERNETES.removeprefix("v").split(".")[:2]


class Tool(StrEnum):
    """A program of the test bed."""

    ETCD = "etcd"
    APISERVER = "kube-apiserver"
    CONTROLLER_MANAGER = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    KUBELET = "kubelet"
    KUBECTL = "kubectl"
    CONTAINERD = "containerd"
    CONTAINERD_SHIM = "containerd-shim-runc-v2"
    CTR = "ctr"
    KWOK = "kwok"
    HELM = "helm"
    DRA_DRIVER = "dra-example-kubeletplugin"


def _kubernetes(folder: Path) -> Recipe:
    """etcd and the programs of the Kubernetes that the module pins."""
    major, minor = pinned_version(folder, "k8s.io/kubernetes").removeprefix("v").split(".")[:2]
    return Recipe(
        folder,
        "k8s.io/kubernetes",
        programs=(
            Tool.ETCD,
            Tool.APISERVER,
            Tool.CONTROLLER_MANAGER,
            Tool.SCHEDULER,
            Tool.KUBELET,
            Tool.KUBECTL,
        ),
        multicall="kubebox",
        stamps=tuple(
            f"{package}.{stamp}"
            for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
            for stamp in ("gitVersion={version}", f"gitMajor={major}", f"gitMinor={minor}")
        ),
    )


NEWER = _kubernetes(MODULES / "kube-1.36")
"""A newer Kubernetes, which only thorough tests ask for: ``newer``."""

KUEUE = Recipe(
    MODULES / "kueue",
    "sigs.k8s.io/kueue",
    programs=("kueue",),
    stamps=("sigs.k8s.io/kueue/pkg/version.GitVersion={version}",),
)
"""Kueue, which only thorough tests ask for: ``kueue``."""

KUEUE_FILES = replace(KUEUE, programs=(), stamps=(), kept=("config",))
"""Its manifests, as a kustomization."""

ON_REQUEST = (NEWER, KUEUE, KUEUE_FILES)
"""What only thorough tests ask for, and ``make cluster-tools`` makes if a flag asks for it."""

RECIPES = (
    Recipe(
        MODULES / "crds",
        "github.com/prometheus-operator/prometheus-operator",
        kept=("example/prometheus-operator-crd",),
    ),
    Recipe(MODULES / "kwok", "sigs.k8s.io/kwok", kept=("kustomize",)),
    _kubernetes(MODULES / "kube"),
    Recipe(
        MODULES / "helm",
        "helm.sh/helm/v3",
        programs=(Tool.HELM,),
        stamps=(
            "helm.sh/helm/v3/internal/version.version={version}",
            # the Kubernetes that a chart is rendered for when there is none to ask
            f"helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor={MAJOR}",
            f"helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor={MINOR}",
        ),
    ),
    Recipe(
        MODULES / "containerd",
        "github.com/containerd/containerd",
        programs=(Tool.CONTAINERD, Tool.CONTAINERD_SHIM, Tool.CTR),
        stamps=("github.com/containerd/containerd/version.Version={version}",),
        tags=("no_aufs", "no_btrfs", "no_devmapper", "no_zfs"),
    ),
    Recipe(MODULES / "kwok", "sigs.k8s.io/kwok", programs=(Tool.KWOK,)),
    Recipe(MODULES / "dra", "sigs.k8s.io/dra-example-driver", programs=(Tool.DRA_DRIVER,)),
)

ENVTEST = frozenset({Tool.ETCD, Tool.APISERVER, Tool.KUBECTL})
"""What KUBEBUILDER_ASSETS has."""


@dataclass(frozen=True)
class Tools:
    """Where the programs are."""

    programs: Mapping[str, Path]

    def path(self, name: str) -> Path:
        """A program's path; its name is the one it must be called by. KeyError: not asked for."""
        return self.programs[name]

    @property
    def containerd_folder(self) -> Path:
        """The folder of containerd 1.7, its shim and ctr."""
        return self.path(Tool.CONTAINERD).parent


def ensure(*wanted: str, build: bool | None = None, recipes: Sequence[Recipe] = RECIPES) -> Tools:
    """The programs ``wanted``, or all of them; built if need be where ``build`` allows it.

    Raises:
        ToolsMissing: a program is not there and may not or cannot be built.
    """
    names = wanted or tuple(name for recipe in recipes for name in recipe.programs)
    brought = _brought(names)
    needed = [recipe for recipe in recipes if (set(recipe.programs) & set(names)) - brought.keys()]
    made = _made(needed, build).items()
    return Tools(
        {name: folder / name for recipe, folder in made for name in recipe.programs} | brought
    )


def newer(tools: Tools, *, build: bool | None = None) -> Tools:
    """The tools with the programs of ``NEWER`` in place of those of Kubernetes.

    Raises:
        ToolsMissing: as ``ensure`` does.
    """
    [(recipe, folder)] = _made([NEWER], build, "make cluster-tools ARGS=--newer").items()
    return Tools({**tools.programs, **{name: folder / name for name in recipe.programs}})


def kueue(*, build: bool | None = None) -> tuple[Path, Path]:
    """Kueue's program, and the folder with its manifests.

    Raises:
        ToolsMissing: as ``ensure`` does.
    """
    made = _made([KUEUE, KUEUE_FILES], build, "make cluster-tools ARGS=--kueue")
    return made[KUEUE] / "kueue", made[KUEUE_FILES] / "config"


def module_folder(
    name: str, *, build: bool | None = None, recipes: Sequence[Recipe] = RECIPES
) -> Path:
    """The files kept of what a module pins (``crds``, ``kwok``), at their places in its source.

    Raises:
        ToolsMissing: as ``ensure`` does.
    """
    [recipe] = (recipe for recipe in recipes if recipe.kept and recipe.folder.name == name)
    return _made([recipe], build)[recipe]


def user_cache() -> Cache:
    """The cache of this user, below XDG_CACHE_HOME."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Cache(Path(base).absolute() / "vgpu-testbed" / "tools", find_go())


def _made(
    recipes: Sequence[Recipe], build: bool | None, how: str = "make cluster-tools"
) -> dict[Recipe, Path]:
    """The folders of the recipes, those that are missing made one after the other.

    ``how`` is the command that makes them.
    """
    cache = user_cache()
    found = {recipe: cache.find(recipe) for recipe in recipes}
    missing = [recipe for recipe, folder in found.items() if not folder]
    if missing and not (_may_build() if build is None else build):
        raise ToolsMissing(f"the cluster tools are not built: {how}")
    for number, recipe in enumerate(missing, 1):
        progress = Progress(f"[{number}/{len(missing)}] {recipe.label}", sys.stderr)
        found[recipe] = cache.make(recipe, progress)
    return {recipe: folder for recipe, folder in found.items() if folder}


def _may_build() -> bool:
    """Whether the environment allows a test to build what is missing."""
    return bool(os.environ.get("CI")) or os.environ.get("VGPU_TESTBED_BUILD") == "1"


def _brought(names: Collection[str]) -> dict[str, Path]:
    """The programs in the folder that the environment names."""
    for variable, programs in (("VGPU_TESTBED_BIN", set(names)), ("KUBEBUILDER_ASSETS", ENVTEST)):
        if folder := os.environ.get(variable):
            expected = programs.intersection(names)
            return {name: _program(variable, Path(folder).absolute(), name) for name in expected}
    return {}


def _program(variable: str, folder: Path, name: str) -> Path:
    for path in (folder / name, *sorted(folder.glob(f"*/{name}"))):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise ToolsMissing(f"{variable} is {folder}, where there is no program {name}")


@click.command()
@click.option("--prune", is_flag=True, help="Delete what other versions have left in the cache.")
@click.option("--newer", "also_newer", is_flag=True, help="Make the newer Kubernetes, too.")
@click.option("--kueue", "also_kueue", is_flag=True, help="Make Kueue, too.")
def main(prune: bool, also_newer: bool, also_kueue: bool) -> None:
    """Make the programs of the test bed, unless they are there, and say where they are."""
    try:
        _made([recipe for recipe in RECIPES if recipe.kept], build=True)
        tools = ensure(build=True)
        if also_newer:
            newer(tools, build=True)
        if also_kueue:
            kueue(build=True)
    except (ToolsMissing, OSError) as error:
        raise click.ClickException(str(error)) from error
    for name, path in tools.programs.items():
        print(f"{name:24} {path}")
    if prune:
        for folder in user_cache().prune((*RECIPES, *ON_REQUEST), Progress("prune", sys.stderr)):
            print(f"deleted {folder}")


if __name__ == "__main__":
    main()
