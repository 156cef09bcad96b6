# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reads what is there; and, where packages must change, what the repository offers."""
from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any, Dict, Mapping, Optional, Tuple
from urllib.parse import unquote_to_bytes

from ..core.errors import GpuOpsError
from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..hardware import parameters
from ..hardware.boot import boot_state
from ..hardware.driver_container import read_driver_container
from ..hardware.peer_modules import PEERS_FILE
from ..packages import provenance, space, torn
from ..packages.apt import credentials, database
from ..packages.dnf import history as dnf_history
from ..packages.manager import PackageManager
from ..packages.managers import APT, DNF, ZYPPER, manager_of
from ..packages.model import Package
from ..packages.others import await_others
from ..packages.rpm import database as rpm_database
from ..packages.rpm import keyring
from ..packages.zypper import history as zypper_history
from . import archive, catalogue, dkms_originals, kernel_hold, prebuilt, runfile, runfile_plan, runfile_removal
from .backends import dnf_offers, zypper_offers
from .boot_arguments import read_arguments
from .build_log import last_log
from .files import KEPT_SOURCES_FILE, places_of
from .kernels import known_keys, read_kernels
from .observation import (
    KEPT_NAMES,
    Observation,
    OfRpm,
    index_needed,
    installer_runs,
    installers_target,
    kernels_in_use,
    read_offer,
    read_way_back,
    way_back_needed,
)
from .origin import Origin, origin_of
from .peer_builds import read_peers
from .policy import Policy
from .preinstalled_parts import Parts, image_of_driver, read_parts
from .record import read
from .signing import asked_for
from .signing_key import read_signing_key
from .staged_build import lacking_tools, read_staged
from .target import is_driven

LISTS = "/var/lib/apt/lists"
LEFTOVERS = (runfile.UNINSTALLER, "/usr/bin/nvidia-smi", "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
             "/usr/lib/aarch64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1")
_HISTORIES: Mapping[str, Any] = {DNF.name: dnf_history, ZYPPER.name: zypper_history}
_OFFERS: Mapping[str, Any] = {DNF.name: dnf_offers, ZYPPER.name: zypper_offers}
_UNSUPPORTED = re.compile(r"(?m)^[^\S\n]*allow_unsupported_modules[^\S\n]+(\S+)")
_QUOTED = "\\|{}[]<>\"^~_=!@#$%&*"


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    """Read what the planner needs; the repository only when packages or headers are not as wanted."""
    manager = _manager(policy, facts)
    packages, of_rpm = manager.installed(host), OfRpm()
    if manager is not APT:
        packages, of_rpm = _of_rpm(host, journal, packages, manager)
        of_rpm = replace(
            of_rpm, signers=_signers(host) if asked_for(policy, facts) else None,
            originals=dkms_originals.kernels_of(host, read(journal), packages) if manager is DNF else ())
    watched = [name for name in packages if catalogue.FAMILY.match(name) or KEPT_NAMES.match(name)
               or name in policy.extra_packages or (policy.comes_from.is_installer and name in catalogue.BUILDERS)]
    if policy.kernel_hold:
        watched += [name for kind in prebuilt.follows(watched) for name in ["linux-" + kind] if name in packages]
    installed = {name: packages[name].version for name in watched if packages[name].installed}
    installed_by_us = provenance.installed_by_us(host, journal, "driver", packages, manager)
    if policy.state == "absent" and manager is APT:
        follow = provenance.automatic(host, journal)
        installed_by_us = {**prebuilt.followed(installed, installed_by_us, follow), **installed_by_us}
    origin, places = origin_of(policy, facts), places_of(facts)
    broken = _unfinished(packages, of_rpm)
    observation = Observation(
        installed=installed,
        broken=broken,
        unfinished={name: packages[name].version for name in watched if packages[name].unfinished},
        torn=torn.observe(host, journal, packages),
        build_log=last_log(host) if broken else "",
        interrupted=manager is APT and manager.interrupted(host),
        ours_unfinished=torn.stopped(journal, broken),
        kernels=read_kernels(host, journal, facts),
        boot=boot_state(host),
        files={path: host.read(path) for path in places.all},
        foreign_sources=manager.configured_in(host, origin.url, places.sources),
        leftovers=_leftovers(host, {name: packages[name].version for name in watched if packages[name].there}),
        runfile=runfile.version(host),
        installer=_installer(host, journal, policy, facts),
        installed_by_us=installed_by_us,
        originals={original.path: None if original.content is None else original.content.decode("utf-8", "replace")
                   for original in journal.originals("driver") if original.path != places.auth},
        lists=_lists_of(host, origin.url) if origin.url and manager is APT else (),
        signing_key=read_signing_key(host, policy),
        held=database.held(packages, watched),
        auth=credentials.observe(host, journal, "driver", places.auth, origin.url,
                                 None if policy.state == "absent" else origin.credentials, places.form),
        loaded_parameters=_loaded_parameters(host, policy),
        set_elsewhere=_set_elsewhere(host),
        month=time.strftime("%Y-%m", time.gmtime()),
        given_key=_given_key(host, origin, facts) if policy.state in ("present", "staged") else "",
        record=read(journal),
        kept=archive.kept(host),
        stores=archive.is_there(host),
        offered=host.exists(KEPT_SOURCES_FILE),
        brought_by=image_of_driver(host),
        arguments=read_arguments(host, journal, policy),
        parts=Parts() if policy.comes_from.installs else read_parts(host, policy, facts),
        of_rpm=of_rpm,
        staged=read_staged(host),
        container=read_driver_container(host),
    )
    observation = replace(observation, peers=read_peers(
        host, journal, policy, facts, [kernel.release for kernel in observation.kernels], observation.signing_key,
        packages, installed_by_us, PEERS_FILE in observation.originals, manager))
    observation = _without_damaged(host, observation, policy, facts)
    if manager is APT:
        observation = replace(observation, kernel_hold=kernel_hold.wanted(
            policy, observation.there, observation.files, facts))
    if policy.state == "absent":
        removable = manager.removable(host, packages, set(installed_by_us).difference(kernels_in_use(facts)))
        return replace(observation, removable=removable, held=database.held(packages, installed_by_us),
                       hidden=manager.hidden(host, packages, removable) if removable else (),
                       bindings=not removable or manager.has_bindings(host))
    returns = policy.state == "rolled_back"
    record = observation.record
    if returns and record is not None and record.runfile:
        # No package comes with it
        return observation
    if not (way_back_needed(observation, policy) if returns else index_needed(observation, policy, facts)):
        return observation
    if manager is not APT:
        offers = _OFFERS[manager.name]
        observation = replace(observation, archives=manager.archives(host), bindings=manager.has_bindings(host))
        return replace(observation, offer=offers.read_way_back(host, observation, record, origin)
                       if returns and record else offers.read_offer(host, observation, policy, facts, origin))
    followers = provenance.followers(host, journal, "driver")
    observation = replace(observation, archives=manager.archives(host), bindings=manager.has_bindings(host),
                          automatic=tuple(sorted(followers.intersection(watched))),
                          lacking_tools=() if returns else lacking_tools(host))
    if returns and record:
        return replace(observation, offer=read_way_back(host, observation, record, origin, followers))
    return replace(observation, offer=read_offer(host, observation, policy, facts, origin, followers))


def _installer(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> runfile.Installer:
    told = runfile.recalled(journal)
    by_installer = policy.comes_from.is_installer and policy.state in ("present", "staged")
    where = runfile_plan.place(policy, facts) if by_installer else ""
    record = read(journal) if policy.state == "rolled_back" else None
    is_written = by_installer or (record is not None and bool(record.runfile))
    return runfile.Installer(
        cached=runfile.cached(host), has_store=host.exists(runfile.STORE), is_half=host.exists(runfile.HALF),
        has_work=host.exists(runfile.WORK), strays=runfile_removal.strays(host), sources=runfile.sources(host),
        ours=told.get("version", ""),
        file={name: told[name] for name in ("sha256", "flavour")} if told else {},
        user_space=facts.driver_userspace, is_there=not where.startswith("/") or host.is_file(where),
        unpacks=manager_of(facts) in (None, APT) or host.which("tar") is not None,
        space=space.observe(host, runfile.CACHE) if is_written else None)


def _without_damaged(host: Host, observation: Observation, policy: Policy, facts: HostFacts) -> Observation:
    """Without the installer's file that the plan is about to have run, where it is not the one any more that was
    fetched: found in the step itself, the driver before would have gone already."""
    target, there = installers_target(observation, policy, facts), observation.installer
    if target is None or not installer_runs(observation, target):
        return observation
    sha256 = target.file["sha256"]
    if not there.has(target.version, sha256) or runfile.is_whole(host, target.version, sha256):
        return observation
    return replace(observation, installer=replace(there, cached={
        each: version for each, version in there.cached.items() if each != sha256}))


def _manager(policy: Policy, facts: HostFacts) -> PackageManager:
    """Whose packages are read: apt's where nothing is installed by us, as it answers without a database too."""
    manager = manager_of(facts) if is_driven(policy, facts) or policy.state == "absent" else None
    return manager or APT


def _of_rpm(
    host: Host, journal: Journal, packages: Dict[str, Package], manager: PackageManager
) -> Tuple[Dict[str, Package], OfRpm]:
    """(packages, the rest): those that were read while somebody changed them are read again."""
    history = _HISTORIES[manager.name]
    left = history.unfinished(host, packages)
    if left:
        await_others(host)
        packages = manager.installed(host)
        left = history.unfinished(host, packages)
    trusted = manager.trusted(host)
    return packages, OfRpm(trusted, keyring.ours(journal, "driver", trusted), left, tuple(manager.hold_refusals(host)),
                           _refuses_unsupported(host) if manager is ZYPPER else "")


def _signers(host: Host) -> Optional[Tuple[str, ...]]:
    known = known_keys(host)
    return None if known is None else tuple(sorted({*known.enrolled.values(), *known.built_in}))


def _refuses_unsupported(host: Host) -> str:
    """The last file of modprobe's that says it, as long as it says 0 (SLES Administration Guide, unsupported modules).
    """
    said = [(path, value) for path in parameters.configuration_files(host)
            for value in _UNSUPPORTED.findall(host.read(path) or "")]
    return said[-1][0] if said and said[-1][1] == "0" else ""


def _unfinished(packages: Mapping[str, Package], of_rpm: OfRpm) -> Tuple[str, ...]:
    """Names of packages that a stopped transaction has left half way."""
    left = of_rpm.left
    over = (rpm_database.without_version(name, packages[name].version) for name in left.leftovers if name in packages)
    return tuple(sorted({*(name for name, package in packages.items() if package.unfinished and not left),
                         *left.doubtful, *over}))


def _loaded_parameters(host: Host, policy: Policy) -> Dict[str, str]:
    ours = parameters.parameters_in(host.read(parameters.PARAMETERS_FILE) or "")
    return parameters.loaded_parameters(host, sorted({*ours, *policy.module_parameters, parameters.COHERENT_MODE}))


def _set_elsewhere(host: Host) -> Dict[str, Dict[str, str]]:
    found: Dict[str, Dict[str, str]] = {}
    for path in parameters.configuration_files(host):
        if path != parameters.PARAMETERS_FILE:
            for name, value in parameters.parameters_in(host.read(path) or "").items():
                found.setdefault(name, {})[path] = value
    return found


def _lists_of(host: Host, url: str) -> Tuple[str, ...]:
    """Index files of the repository itself: those of one below it have the name of its directory before their own."""
    beginning = list_name(url)
    return tuple("%s/%s" % (LISTS, name) for name in host.list(LISTS)
                 if name.startswith(beginning) and "_" not in name[len(beginning):])


def _leftovers(host: Host, there: Mapping[str, str]) -> Tuple[str, ...]:
    """Files of a driver that came without packages: an installer's own, or a copied library.

    there: packages with files on the host, those included that dpkg has unpacked and not configured yet.
    """
    if catalogue.without_companions(catalogue.family(there)):
        return tuple(path for path in LEFTOVERS[:1] if host.exists(path))
    return tuple(path for path in LEFTOVERS if host.exists(path))


def list_name(url: str) -> str:
    """How apt names the index files of a repository (URItoFileName, apt-pkg/contrib/strutl.cc)."""
    bare = unquote_to_bytes(re.sub(r"^[a-z0-9+.-]+:(//)?(\[([^]]*)\])?", r"\3", url).rstrip("/") + "/")
    return "".join("_" if byte == ord("/") else chr(byte) if 0x20 < byte < 0x7f and chr(byte) not in _QUOTED
                   else "%%%02x" % byte for byte in bare)


def _given_key(host: Host, origin: Origin, facts: HostFacts) -> str:
    """The key at a path on this host; one that cannot be read is told when the repository is."""
    if not origin.key_file:
        return ""
    try:
        return (manager_of(facts) or APT).read_key(host, origin.key_file)
    except GpuOpsError:
        return ""
