"""The real pages of a dump, without a network: the site behind ``vgpu fleet``."""

from fleet.explainer import Explainer
from fleet.keeper import Keeper
from fleet.read import of_files
from fleet.site import Site
from fleet.snapshot import snapshot
from vgpu.inventory import Units
from vgpu.web.message import HttpRequest

UNITS = Units(1024, 1024**3)
FLAGS = ("--volcano.memory-factor", "1024", "--gpushare.memory-unit", "GiB")


def site_of(*paths, units=UNITS, measured=None, history=None, flags=()):
    """The site of dumps, and its first snapshot with its pods explained."""

    def make():
        use = measured and measured("")
        return snapshot(of_files(paths, units, "team"), units, use, history, flags)

    keeper = Keeper(make, 0, ())
    keeper.read(Explainer()._explain_all)  # on this thread: nothing to wait for
    return Site(keeper, 0)


def get(site, path, **headers):
    """The answer to a request."""
    path, _, query = path.partition("?")
    return site.answer(HttpRequest("GET", path, query, headers))
