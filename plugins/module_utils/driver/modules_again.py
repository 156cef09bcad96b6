# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Modules that came built and whose file is another's, or gone: their package is installed once more.

rpm does not tell it. NVIDIA's packages for EL put their modules together on the host, those of every driver in one
place, and name them as %ghost (NVIDIA/yum-packaging-precompiled-kmod, dnf-kmod-nvidia.spec): what came last is there,
and stays when its package goes, as long as another one names it. DKMS takes a module away that lies where its own will,
and puts it back when its own goes, whatever is installed by then; with its own it removes whatever lies there in the
same version (dkms, do_install() and do_uninstall()).
"""
from __future__ import annotations

from typing import Dict, List, Mapping

from ..core.host import Host
from ..core.journal import Journal
from ..packages.apt import running
from ..packages.dnf import asking as dnf
from ..packages.dnf.transaction import specs as dnf_specs
from ..packages.others import await_others
from ..packages.rpm import database, unsynced
from ..packages.zypper import asking as zypper
from ..packages.zypper.transaction import specs as zypper_specs
from . import catalogue
from .archive import STORE, kept
from .record import is_archived

_SECONDS = 3600
_ZYPPER = "/usr/bin/zypper"


def packages_of(host: Host, release: str, version: str) -> Dict[str, str]:
    """{package: version} of the modules of a driver that came built for a kernel, as rpm's database calls them."""
    return {name: package.version for name, package in database.installed(host).items()
            if package.installed and catalogue.PREBUILT_MODULES.match(name) and catalogue.serves(name, release)
            and catalogue.upstream(package.version) == version}


def by_hand(host: Host, packages: Mapping[str, str]) -> str:
    """The command that installs packages once more."""
    if host.exists(_ZYPPER):
        return "zypper install --force " + " ".join(zypper_specs(packages))
    return "dnf reinstall " + " ".join(sorted(packages))


def install_again(host: Host, journal: Journal, packages: Mapping[str, str]) -> None:
    """Install once more what is there, from files on this host where all of them are; what comes of it the caller sees.

    rpm itself takes those: neither its manager nor a repository is asked. It knows packages as installed all the while.
    """
    await_others(host)
    names = kept(host)
    found = database.whole_files(host, {
        name: "%s/%s" % (STORE, each) for name, version in packages.items() for each in names
        if is_archived(name, version, [each])})
    with unsynced.once_more(host, journal, packages):
        if found.keys() == packages.keys() or host.exists(_ZYPPER):
            _with_rpm(host, [*found.values(), *_fetched(host, {
                name: version for name, version in packages.items() if name not in found})])
        else:
            running.configure(host, ["dnf", *dnf.own(host), "--assumeyes", "--setopt=*.skip_if_unavailable=1",
                                     "reinstall", *dnf_specs(packages, found)], _SECONDS)


def _with_rpm(host: Host, files: List[str]) -> None:
    """In a session of its own: when time is up, the waiting ends and not rpm."""
    if files:
        running.configure(host, ["rpm", *database.changing(host), "-U", "--replacepkgs", "--oldpackage", "--nodeps",
                                 *files], _SECONDS)


def _fetched(host: Host, packages: Mapping[str, str]) -> List[str]:
    """Files of packages that zypper has or fetches."""
    done = zypper.zypper(host, "download", *zypper_specs(packages)) if packages else None
    return list(zypper.parse(done.stdout).files) if done else []
