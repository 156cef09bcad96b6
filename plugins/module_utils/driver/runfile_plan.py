# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a plan has of NVIDIA's installer: the file, the driver that it brings, and what forbids it. Pure.

The installer brings user space and firmware alone, as in NVIDIA's own driver containers (NVIDIA/gpu-driver-container,
nvidia-driver): told to bring kernel modules too, it unloads those that run, has the uninstaller of the driver before
unload them, and builds for one kernel (nvidia-installer 590.48.01, kernel.c, backup.c). DKMS builds them for every
kernel out of the source that lies in the same file, signs them and accounts for them, as it does with every other
source of drivers.
"""
from __future__ import annotations

from dataclasses import replace
from typing import List, Mapping, Sequence, Tuple

from ..core.facts import HostFacts
from ..core.plan import Disruption, Step
from ..core.refusal import Refusal
from ..packages import refusals, space
from ..packages.managers import ZYPPER
from ..packages.model import Simulation
from . import building, catalogue, runfile
from .backends.chosen import backend_of
from .observation import Observation, Offer, foreseen, installer_runs
from .policy import Policy
from .record import Record
from .target import Target

NAME = "driver"
FETCH, INSTALL, FORGET = "runfile.fetch", "runfile.install", "runfile.forget"
# With the numbers that programs for them have (elf.h, EM_X86_64 and EM_AARCH64)
ARCHITECTURES: Mapping[str, int] = {"x86_64": 62, "aarch64": 183}
_NVIDIAS = "https://us.download.nvidia.com/tesla/%s/"
_HOW_TO_ENABLE: Mapping[str, str] = {ZYPPER.name: " (`SUSEConnect --product`, each)"}
# Of 590.48.01 for x86_64, with room to spare: the file, what it unpacks to, and what it installs
_FILE, _UNPACKED, _INSTALLED = 600 * space.MIB, 1600 * space.MIB, 1200 * space.MIB


def place(policy: Policy, facts: HostFacts) -> str:
    """Where the file is: a URL, or a path on this host. A directory ends in a slash."""
    given = policy.runfile or _NVIDIAS % policy.version
    if given.startswith("file://"):
        given = given[len("file://"):]
    return given + "NVIDIA-Linux-%s-%s.run" % (facts.arch, policy.version) if given.endswith("/") else given


# refusals


def refuse_host(observation: Observation, policy: Policy, facts: HostFacts) -> List[Refusal]:
    found = []
    if facts.arch not in ARCHITECTURES:
        found.append(Refusal(
            "driver.runfile_not_for_architecture", "a host of architecture %s" % facts.arch,
            "one of %s, for which NVIDIA's installer is made" % ", ".join(ARCHITECTURES),
            "install the driver yourself and set `source` to `preinstalled`", option="source"))
    daemons = {"fabric_manager": policy.fabric_manager == "auto" and bool(facts.fabric),
               "imex": policy.imex == "auto" and facts.imex}
    found += [Refusal(
        "driver.runfile_without_daemon", "a board that needs `%s`" % option,
        "a source that has it in the driver's version: NVIDIA's installer has not",
        "set `source` to `nvidia_repository` or `local_repository`, or `%s` to `absent` where others bring it in "
        "exactly this version" % option, option=option) for option, needed in daemons.items() if needed]
    if observation.leftovers and not (observation.runfile or observation.installer.is_half):
        found.append(Refusal(
            "driver.files_of_nobody", "files of a driver that neither a package nor an installer's list has: %s" % (
                ", ".join(observation.leftovers)),
            "a driver that something can take away, or none", "remove those files, or set `source` to `preinstalled`",
            option="source"))
    elif observation.leftovers and backend_of(facts).foreign(policy, observation.installed):
        found.append(Refusal(
            "driver.runfile_over_packages", "files of NVIDIA's installer beside packages of a driver: %s" % (
                ", ".join(observation.leftovers)),
            "a driver of one of them: nobody knows which of the files are whose",
            "run `nvidia-uninstall`, then purge the packages"))
    return found


def refuse_target(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> List[Refusal]:
    if not installer_runs(observation, target):
        return []
    there = observation.runfile
    if there and not policy.migrate and not _is_ours(observation):
        return [Refusal(
            "driver.runfile_of_others", "driver %s, which others have installed by NVIDIA's installer" % there,
            "driver %s with the %s kernel module for every kernel" % (target.version, target.module),
            "set `migrate` to true to have it replaced, or run `nvidia-uninstall`", option="migrate")]
    if not _has(observation, target) and not observation.installer.is_there:
        return [Refusal(
            "driver.runfile_not_there", "no file %s on this host" % place(policy, facts),
            "NVIDIA's installer %s for %s" % (target.version, facts.arch),
            "put it there, or correct `runfile`: a path is one on the host", option="runfile")]
    if not observation.installer.unpacks:
        return [Refusal(
            "driver.runfile_without_tar", "no `tar` on this host", "what NVIDIA's installer unpacks itself with",
            "run `%s install tar`" % backend_of(facts).manager.name)]
    refused = [] if observation.offer is not None else refuse_headless(observation, {}, policy, facts, target)
    cleared = backend_of(facts).make_room[space.SYSTEM]
    return refused or refusals.no_space(observation.installer.space, _room(observation, target), {
        runfile.CACHE: cleared, space.SYSTEM: cleared})


def refuse_headless(
    observation: Observation, coming: Mapping[str, str], policy: Policy, facts: HostFacts, target: Target
) -> List[Refusal]:
    """coming: what packages bring."""
    return building.refuse_headless(foreseen(observation, target).kernels, coming, policy, facts, target)


def refuse_moved_aside(strays: Sequence[str]) -> List[Refusal]:
    """strays: see runfile.Installer."""
    return [Refusal(
        "driver.runfile_moved_aside",
        "files of somebody else that NVIDIA's installer has moved out of its way, and no list that tells from where: "
        "%s" % ", ".join(strays), "none that nvidia-uninstall would remove",
        "move each to where it was, or elsewhere (`file` tells what it is), and run this again")] if strays else []


def refuse_way_back(observation: Observation, record: Record, target: Target) -> List[Refusal]:
    return refuse_once_gone(observation, record) if installer_runs(observation, target) else []


def refuse_once_gone(observation: Observation, record: Record) -> List[Refusal]:
    """What would keep the recorded driver of an installer from being installed again, had it gone."""
    packages = sorted(name for name, version in catalogue.without_companions(observation.installed).items()
                      if catalogue.is_of_driver(name, version))
    lacks = "" if observation.installer.has(record.version, record.runfile["sha256"]) else \
        "no whole file of NVIDIA's installer %s in %s" % (record.version, runfile.STORE)
    found = "packages of a driver in its place: %s" % ", ".join(packages) if packages else lacks
    return [Refusal(
        "driver.runfile_no_way_back", found,
        "the file of the driver before, and no driver there but an installer's",
        "install the driver that you want (`state: present` with its `version`)")] if found else []


def _has(observation: Observation, target: Target) -> bool:
    return observation.installer.has(target.version, target.file["sha256"])


def _is_ours(observation: Observation) -> bool:
    """Whether the driver that is there came by us; its removal may have been stopped after its list was gone."""
    there = observation.installer
    return there.is_half or bool(there.ours) and observation.runfile in (there.ours, "unknown")


def _room(observation: Observation, target: Target) -> Simulation:
    """What it takes, as a transaction: what it replaces goes only in its course, and counts as if it stayed; what a
    stopped run has unpacked goes before, but not before a file that is fetched was unpacked beside it."""
    if not _has(observation, target):
        return Simulation({}, (), download=_FILE + _UNPACKED, unpacked=_INSTALLED)
    return Simulation({}, (), download=0 if observation.installer.has_work else _UNPACKED, unpacked=_INSTALLED)


def refuse_tools(offer: Offer, policy: Policy, facts: HostFacts, target: Target, where: str) -> List[Refusal]:
    """Of what builds the module the sources of the host have to bring what is not there."""
    lacking = [name for name in target.packages.required if not target.package_version(name, offer.versions)]
    if not lacking:
        return []
    backend = backend_of(facts)
    first = backend.enabled_first(policy, facts, target)
    return [Refusal(
        "driver.no_tools", "%s have no %s%s" % (
            where, ", ".join(lacking), "".join(" | " + each for each in offer.unread)),
        "DKMS, and the compiler and make that it depends on: they build the kernel module",
        "%slet this host reach its own sources (`%s`), or install %s" % (
            "enable %s%s, and " % (" and ".join(first), _HOW_TO_ENABLE.get(backend.manager.name, "")) if first else "",
            refusals.WORDS[backend.manager.name].update, ", ".join(lacking)))]


def notes(observation: Observation, target: Target) -> List[str]:
    """Companions that others bring and that do not fit: they may come once the driver is there."""
    others = {name: version for name, version in catalogue.family(observation.installed).items()
              if catalogue.is_companion(name) and catalogue.upstream(version) != target.version}
    return ["%s %s is not of driver %s, and does not work with it: bring it in exactly this version." % (
        name, version, target.version) for name, version in sorted(others.items())]


# steps


def fetch_steps(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> List[Step]:
    if not installer_runs(observation, target) or _has(observation, target):
        return []
    return [Step(
        NAME, FETCH, "driver %s" % target.version,
        "The file is on the host, and is the one that is wanted, before anything on it changes.",
        change={"before": {"sha256": None}, "after": {"sha256": target.file["sha256"]}},
        parameters={"place": place(policy, facts), "version": target.version, "module": target.module,
                    "arch": facts.arch, "manager": backend_of(facts).manager.name, "timeout": 3600})]


def removal_steps(observation: Observation, facts: HostFacts, target: Target) -> List[Step]:
    """The driver that an installer has brought before, or half of one."""
    if not installer_runs(observation, target):
        return []
    return runfile.removal(observation.to_uninstall, observation.leftovers, bool(facts.driver_loaded),
                           _why_it_goes(observation, target))


def _why_it_goes(observation: Observation, target: Target) -> str:
    there = observation.installer
    if there.is_half or observation.runfile != target.version or not there.came_otherwise(target.version, target.file):
        return "Another takes its place"
    if there.file["sha256"] != target.file["sha256"]:
        return "It came from another file of that version (sha256:%s)" % there.file["sha256"]
    return "It has the flavour %s, and %s is wanted" % (there.file["flavour"], target.file["flavour"])


def install_steps(
    observation: Observation, facts: HostFacts, target: Target, requires: Sequence[str]
) -> List[Step]:
    if not installer_runs(observation, target):
        return []
    return [Step(
        NAME, INSTALL, "driver %s" % target.version,
        "Driver %s with the source of the %s kernel module; what is loaded stays loaded." % (
            target.version, target.module),
        Disruption.driver_reload if facts.driver_loaded else Disruption.none,
        change={"before": {"driver": None}, "after": {"driver": target.version}},
        parameters={**target.file, "module": target.module, "arch": facts.arch, "timeout": 1800},
        depends_on=tuple(requires))]


def after(builds: Sequence[Step], install: Sequence[Step]) -> List[Step]:
    """Modules are built of the source that the installer's file has."""
    return [replace(step, depends_on=(*step.depends_on, *(each.id for each in install))) for step in builds]


def packages_words(target: Target) -> Tuple[str, str]:
    """(subject, why) of the packages beside it."""
    if target.leaves:
        return "what builds its module", "Packages of another source leave for NVIDIA's installer."
    return "what builds its module", "DKMS builds the driver's module for every kernel that can be booted."


def absent_steps(observation: Observation, facts: HostFacts) -> List[Step]:
    """What came by us goes; the driver goes while DKMS is there. Where somebody has run nvidia-uninstall himself, the
    source of our module has stayed, unless it has become that of a package."""
    there = observation.installer
    steps = runfile.removal(observation.to_uninstall, observation.leftovers, bool(facts.driver_loaded),
                            "It came by us") if there.is_half or (observation.runfile and _is_ours(observation)) else []
    if observation.to_uninstall or catalogue.without_companions(catalogue.family(observation.there)):
        return steps + forget_steps(observation, steps)
    sources = [version for version, kind in sorted(there.sources.items()) if kind]
    return [replace(step, disruption=Disruption.driver_reload) if sources and facts.driver_loaded else step
            for step in forget_steps(observation, (), sources)]


def forget_steps(observation: Observation, removal: Sequence[Step], sources: Sequence[str] = ()) -> List[Step]:
    """No driver will come from the installer's files. sources: versions of the modules' sources that go too."""
    there = observation.installer
    if there.is_half and observation.runfile and not removal:
        return []
    before = {**there.cached, **{runfile.source_directory(version): there.sources[version] for version in sources}}
    if there.ours and not observation.to_uninstall:
        before["driver"] = there.ours
    if there.has_store and not before:
        before[runfile.STORE] = "of a stopped run"
    return [Step(
        NAME, FORGET, runfile.STORE, "No driver is installed from these files any more.",
        change={"before": before, "after": dict.fromkeys(before)}, parameters={"sources": list(sources)},
        reversible=False, depends_on=tuple(step.id for step in removal))] if before else []


def forgets_modules(step: Step) -> bool:
    return step.action == FORGET and bool(step.parameters["sources"])
