"""Software bills of materials (CycloneDX 1.6) of the wheel and of the image of each platform.

The serial number follows from the content, and the date is that of the commit: the same bytes
again.
"""

import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from deploy.release.debian import DebianLock, DebianPackage
from deploy.release.platforms import Platform
from deploy.release.source import SourceTree
from deploy.release.wheels import extras, locked


def wheel_sbom(source: SourceTree, sha256: str) -> str:
    """The wheel with what it requires, in the versions of the lock; the extras' are optional."""
    optional = extras(source)
    object_name = _object_name(source, "pypi", ComponentType.LIBRARY, sha256)
    return _json(source, object_name, list(_python_components(source, optional)))


def image_sbom(source: SourceTree, lock: DebianLock, platform: Platform, digest: str) -> str:
    """The image of one platform: Debian's packages, the requirements and our wheel."""
    object_name = _object_name(
        source, "oci", ComponentType.CONTAINER, digest.removeprefix("sha256:")
    )
    object_name.properties.add(Property(name="architecture", value=platform.name))
    wheel = _object_name(source, "pypi", ComponentType.LIBRARY, "")
    components = [wheel, *_python_components(source, set())]
    components += [_debian_component(package) for package in lock.of(platform.name)]
    return _json(source, object_name, components)


def _json(source: SourceTree, object_name: Component, components: Iterable[Component]) -> str:
    parts = sorted(components)
    names = "\n".join(f"{part.bom_ref}" for part in (object_name, *parts))
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, names), components=parts)
    bom.metadata.timestamp = datetime.fromtimestamp(source.epoch, UTC)
    bom.metadata.component = object_name
    bom.register_dependency(object_name, parts)
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    return f"{outputter.output_as_string(indent=1)}\n"


def _object_name(source: SourceTree, kind: str, type_: ComponentType, sha256: str) -> Component:
    purl = PackageURL(kind, None, "vgpu", source.version if kind == "pypi" else f"sha256:{sha256}")
    return Component(
        name="vgpu",
        version=source.version,
        type=type_,
        purl=purl,
        bom_ref=str(purl),
        licenses=[DisjunctiveLicense(id=source.pyproject["project"]["license"])],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else [],
    )


def _python_components(source: SourceTree, optional: set[str]) -> Iterator[Component]:
    for name, version in locked(source.lock("runtime")).items():
        purl = PackageURL("pypi", None, name, version)
        component = Component(name=name, version=version, purl=purl, bom_ref=str(purl))
        if name in optional:
            component.properties.add(Property(name="extra", value="true"))
        yield component


def _debian_component(package: DebianPackage) -> Component:
    qualifiers = {"arch": package.platform, "distro": "debian-13"}
    purl = PackageURL("deb", "debian", package.name, package.version, qualifiers)
    return Component(
        name=package.name,
        version=package.version,
        purl=purl,
        bom_ref=str(purl),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)],
    )
