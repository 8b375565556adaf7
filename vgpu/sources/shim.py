"""The regions of all containers: their folders under the roots, which are not trusted.

A tenant owns the folder that its region lies in. So: no link is followed; folders are opened once
and files relative to them; and one bad container is one rejection. :mod:`vgpu.sources.regions`
reads the files.
"""

import itertools
import os
import re
import time
from collections.abc import Collection, Sequence

import msgspec

from vgpu.model.facts import RegionFile, ShimSample
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.sources.files import RACY_NS, Living, first_entries, printable, translated
from vgpu.sources.regions import FOLDER_FLAGS, ROOT_FLAGS, RegionImage, is_same, open_fd, read_image

MAX_ENTRIES = 16_384  # of one root; far more than a node has containers
MAX_FOLDER_ENTRIES = 64
MAX_CANDIDATES = 4  # region files of one container that are looked at

MANY_FOLDERS = 256
"""Number of folders in a root above which those without a living pod are read rarely."""

RARELY = 80
"""Number of samples between two reads of a folder without a living pod."""

FOLDER_NAME = re.compile(
    r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})"
    r"_[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
)
"""``<podUID>_<container>``: a UUID, or the hash that is a static pod's UID; a DNS label."""

RESOURCE_CLAIM_NAME = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""``<UID of a ResourceClaim>``: the folders of HAMi's DRA driver."""

_Stamp = tuple[int, int, int]


class RootListing(msgspec.Struct, frozen=True):
    """What a root held while its ``stamp`` was this; ``entries`` are (name, full path, pod UID).

    One that is not ``whole`` was chosen by the pods that lived (``living``).
    """

    stamp: _Stamp
    entries: tuple[tuple[str, str, str], ...]
    rejections: tuple[Rejection, ...] = ()
    whole: bool = True
    living: Collection[str] = ()

    def is_of(self, stamp: _Stamp, living: Living) -> bool:
        """Whether a new listing would be the same."""
        return self.stamp == stamp and (self.whole or self.living == frozenset(living()))


class _Folder(msgspec.Struct):
    """What the last look into one container's folder brought.

    Attributes:
        stamp: the folder's, while its ``entries`` (names and full paths) are known; else None.
        images: the bytes of the regions, by file name.
        files: the region of the container, if it has one.
        rejections: what was refused.
    """

    stamp: _Stamp | None = None
    entries: tuple[tuple[str, str], ...] = ()
    refused: tuple[Rejection, ...] = ()
    images: dict[str, RegionImage] = {}
    files: tuple[RegionFile, ...] = ()
    rejections: tuple[Rejection, ...] = ()


class _Root(msgspec.Struct):
    """The cache of one root: its listing, and its folders by name.

    ``of_resource_claims``: the folders are of ResourceClaims, and not of containers.
    """

    path: str
    of_resource_claims: bool = False
    listing: RootListing | None = None
    folders: dict[str, _Folder] = {}


class ShimSource:
    """Reads the region files of all containers under ``roots``. One thread calls ``sample``.

    Of each root ``MAX_ENTRIES`` are read, those of ``living`` pods first. Folders are listed again
    only after a change. Of many folders, those without a living pod are read rarely.
    """

    def __init__(
        self,
        roots: Sequence[str],
        *,
        required: bool = True,
        living: Living = tuple,
        resource_claim_roots: Sequence[str] = (),
    ) -> None:
        """Take the roots; if none exists that is an error only if one is ``required``.

        ``resource_claim_roots`` have a folder for each ResourceClaim. None of them has to exist.
        """
        self._roots = [_Root(path) for path in roots]
        self._resource_claim_roots = [
            _Root(path, of_resource_claims=True) for path in resource_claim_roots
        ]
        self._required = required
        self._living = living
        self._samples = 0
        self._sample = ShimSample(())

    def sample(self) -> ShimSample:
        """Every container's region, by root and folder name. Roots that do not exist are fine.

        It is the sample before if nothing has changed.

        Raises:
            SourceError: no root could be read; ABSENT if there is none and one is required.
        """
        self._samples += 1
        files: list[RegionFile] = []
        rejections: list[Rejection] = []
        roots_read: set[tuple[int, int]] = set()
        failed: list[SourceError] = []
        of_resource_claims: list[SourceError] = []
        for root in (*self._roots, *self._resource_claim_roots):
            failures = of_resource_claims if root.of_resource_claims else failed
            try:
                fd = open_fd(root.path, ROOT_FLAGS)
            except SourceError as error:
                failures.append(error)
                continue
            try:
                stamp = _stamp(os.fstat(fd))
                if stamp[:2] not in roots_read:
                    roots_read.add(stamp[:2])
                    listing = self._listing(root, fd, stamp)
                    rejections += listing.rejections
                    self._look_into(root, listing, fd)
                    folders = root.folders
                    for name, _, _ in listing.entries:
                        if (folder := folders.get(name)) is not None:
                            files += folder.files
                            rejections += folder.rejections
            except OSError as error:
                failures.append(translated(error, root.path))
            finally:
                os.close(fd)
        rejections += (e.rejection() for e in of_resource_claims if e.reason is not Reason.ABSENT)
        broken = [failure for failure in failed if failure.reason is not Reason.ABSENT]
        if len(failed) == len(self._roots) and not broken and not self._required:
            rejections += (e.rejection() for e in failed)
        elif len(failed) == len(self._roots):
            raise (broken or failed or [SourceError(Reason.ABSENT, "no roots")])[0]
        rejections += (failure.rejection() for failure in broken)
        sample = ShimSample(tuple(files), tuple(rejections))
        if sample != self._sample:
            self._sample = sample
        return self._sample

    def _listing(self, root: _Root, fd: int, stamp: _Stamp) -> RootListing:
        """The root's folders, listed if they may have changed."""
        listing = root.listing
        if listing is not None and listing.is_of(stamp, self._living):
            return listing
        now_ns = time.time_ns()
        names = RESOURCE_CLAIM_NAME if root.of_resource_claims else FOLDER_NAME
        listing = list_root(fd, root.path, self._living, names)
        root.folders = {
            name: folder
            for name, _, _ in listing.entries
            if (folder := root.folders.get(name)) is not None
        }
        root.listing = listing if _settled(listing.stamp, now_ns) else None
        return listing

    def _look_into(self, root: _Root, listing: RootListing, fd: int) -> None:
        """Bring the root's folders up to date; of many, those of dead pods rarely."""
        now_ns = time.time_ns()
        entries, folders = listing.entries, root.folders
        living = frozenset(self._living()) if len(entries) > MANY_FOLDERS else frozenset[str]()
        if living:
            entries = tuple(
                entry
                for number, entry in enumerate(entries, start=self._samples)
                if not number % RARELY or entry[2] in living or entry[0] not in folders
            )
        for name, path, uid in entries:
            folder = folders.get(name) or _Folder()
            before = folder.files
            if _look(folder, fd, (name, path), now_ns):
                folders[name] = folder
                if living and uid not in living:
                    folder.images = {}  # thousands of them would fill the memory
                if folder.files == before:
                    folder.files = before
            else:
                folders.pop(name, None)


def _look(folder: _Folder, root_fd: int, location: tuple[str, str], now_ns: int) -> bool:
    """Read the one region of the folder at ``location`` (name, path); False if it is gone."""
    name, path = location
    is_known = folder.stamp is not None and _is_as_listed(folder.stamp, root_fd, name)
    if is_known and _has_same_region(folder, root_fd, name):
        return True
    folder.files, folder.rejections = (), folder.refused if is_known else ()
    try:
        if is_known:
            _read_files(folder, root_fd, f"{name}/", location)
            return True
        fd = open_fd(name, FOLDER_FLAGS, root_fd)
        try:
            stamp = _stamp(os.fstat(fd))
            folder.stamp, folder.images = None, {}
            folder.entries, folder.refused = list_regions(fd, path)
            if _settled(stamp, now_ns):
                folder.stamp = stamp
            _read_files(folder, fd, "", location)
        finally:
            os.close(fd)
    except SourceError as error:
        if error.reason is Reason.ABSENT:  # removed since the listing
            return False
        folder.rejections = (*folder.rejections, Rejection(path, error.reason, error.detail))
    except OSError as error:
        refused = translated(error, path)
        if refused.reason is Reason.ABSENT:
            return False
        folder.rejections = (*folder.rejections, refused.rejection())
    return True


def _is_as_listed(stamp: _Stamp, root_fd: int, name: str) -> bool:
    """Whether this is the folder that was listed: the same, no link, and nothing in it changed."""
    try:
        return _stamp(os.stat(name, dir_fd=root_fd, follow_symlinks=False)) == stamp
    except OSError:  # opening it reports why
        return False


def _has_same_region(folder: _Folder, root_fd: int, name: str) -> bool:
    """Whether the folder's only file is the region that it was; then all of it is as it was."""
    if not folder.files or len(folder.entries) != 1:
        return False
    file = folder.entries[0][0]
    image = folder.images.get(file)
    try:
        return image is not None and is_same(f"{name}/{file}", root_fd, image)
    except SourceError:  # which reading it reports
        return False


def _read_files(folder: _Folder, dir_fd: int, prefix: str, location: tuple[str, str]) -> None:
    """Read the folder's regions, whose paths are relative to ``dir_fd`` with the ``prefix``.

    Raises SourceError AMBIGUOUS where there are several.
    """
    images: dict[str, RegionImage] = {}
    folder.rejections = folder.refused
    for file, file_path in folder.entries:
        try:
            images[file] = read_image(prefix + file, dir_fd, folder.images.get(file))
        except SourceError as error:
            if error.reason is not Reason.ABSENT:
                refused = Rejection(file_path, error.reason, error.detail)
                folder.rejections = (*folder.rejections, refused)
    folder.images = images if len(images) == 1 else {}  # several would fill the memory
    name, path = location
    if len(images) > 1:
        raise SourceError(Reason.AMBIGUOUS, path, f"{len(images)} valid regions")
    uid, is_of_container, container = name.partition("_")
    place = (uid, container, "") if is_of_container else ("", "", uid)
    folder.files = tuple(
        RegionFile(file_path, place[0], place[1], images[file].region, place[2])
        for file, file_path in folder.entries
        if file in images
    )


def _stamp(status: os.stat_result) -> _Stamp:
    """Device, inode and ctime in ns: unlike mtime, ctime is not a tenant's to set."""
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _settled(stamp: _Stamp, now_ns: int) -> bool:
    """Whether a change after a listing made now would show in the stamp."""
    return now_ns - stamp[2] > RACY_NS


def list_root(
    fd: int, path: str, living: Living = tuple, folder_name: re.Pattern[str] = FOLDER_NAME
) -> RootListing:
    """The folders of containers in an open root; other entries are one rejection for each reason.

    ``folder_name`` is the form of their names. Raises OSError.
    """
    stamp = _stamp(os.fstat(fd))
    names, bad_names, no_folders = [], [], []
    alive: frozenset[str] = frozenset()

    def asked() -> Collection[str]:
        nonlocal alive
        alive = frozenset(living())
        return alive

    with os.scandir(fd) as entries:
        listed, too_many = first_entries(entries, MAX_ENTRIES, asked)
        for entry in listed:
            if not folder_name.fullmatch(entry.name):
                bad_names.append(entry.name)
            elif not entry.is_dir(follow_symlinks=False):
                no_folders.append(entry.name)
            else:
                names.append(entry.name)
    rejections = [
        Rejection(
            printable(f"{path}/{min(refused)}"),
            reason,
            f"and {len(refused) - 1} more" if len(refused) > 1 else "",
        )
        for reason, refused in (
            (Reason.BAD_DIRECTORY_NAME, bad_names),
            (Reason.NOT_REGULAR_FILE, no_folders),
        )
        if refused
    ]
    if too_many:
        detail = f"more than {MAX_ENTRIES} entries"
        rejections.append(Rejection(path, Reason.TOO_MANY_FILES, detail))
    else:  # of too many the living ones come first, and stay so
        names.sort()
    paths = tuple((name, f"{path}/{name}", name.partition("_")[0]) for name in names)
    return RootListing(stamp, paths, tuple(rejections), whole=not too_many, living=alive)


def list_regions(fd: int, path: str) -> tuple[tuple[tuple[str, str], ...], tuple[Rejection, ...]]:
    """The region files in the open folder of one container: names and full paths, and refusals.

    What is not a regular file is not even opened. Raises OSError.
    """
    caches, rejections = [], []
    with os.scandir(fd) as entries:
        for entry in itertools.islice(entries, MAX_FOLDER_ENTRIES):
            if not entry.name.endswith(".cache"):
                continue
            file_path = printable(f"{path}/{entry.name}")
            if entry.is_file(follow_symlinks=False):
                caches.append((entry.name, file_path))
            else:
                rejections.append(Rejection(file_path, Reason.NOT_REGULAR_FILE))
        too_many = next(entries, None) is not None
    if too_many:
        refusal = Rejection(path, Reason.TOO_MANY_FILES, f"more than {MAX_FOLDER_ENTRIES} entries")
        return (), (refusal,)
    if len(caches) > MAX_CANDIDATES:
        return (), (Rejection(path, Reason.AMBIGUOUS, f"{len(caches)} files"),)
    return tuple(sorted(caches)), tuple(rejections)
