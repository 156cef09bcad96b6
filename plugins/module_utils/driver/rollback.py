# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The record of a driver before it is exchanged, the check of the way back, and the way back itself. Pure."""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.facts import HostFacts
from ..core.plan import Disruption, Step
from ..core.refusal import Refusal
from ..core.steps import file_step, packages_step
from ..packages.dnf import locks
from ..packages.managers import APT, manager_of
from . import building, catalogue, precompiled, runfile, runfile_plan
from .archive import STORE
from .files import KEPT_SOURCES_FILE, REPO_FILE, STREAM_FILE, Places, places_of, without_login
from .observation import Observation, archives_at_hand, is_in_place, recorded_target
from .record import NONE, Record, is_archived, is_proven, strangers, way_back

NAME = "driver"
RECORD, FORGET = "driver.record", "driver.forget"
OFFER, CHECK, WITHDRAW = "archive.offer", "archive.check", "archive.withdraw"


def there_now(observation: Observation, facts: HostFacts, floating: Iterable[str] = ()) -> Optional[Record]:
    """The driver that is there as a record, None where it is not one to return to.

    floating: names whose version is not the driver's.
    """
    apart = set(floating)
    packages = {name: version for name, version in observation.installed.items()
                if catalogue.is_of_driver(name, version) or (
                    catalogue.FAMILY.match(name) and (name in apart or name in observation.installed_by_us))}
    if observation.runfile and not catalogue.without_companions(packages):
        return _of_installer(observation, facts)
    version = catalogue.upstream(_anchor(packages))
    # rpm has no state of a package that is half there: a stopped transaction names its packages
    stopped = () if manager_of(facts) is APT else observation.broken
    if not version or any(catalogue.FAMILY.match(name) for name in (
            *observation.unfinished, *observation.torn, *stopped)):
        return None
    # A change that was stopped and whose packages were finished since leaves some of them in the new version
    if any(catalogue.upstream(each) != version for each in catalogue.family(packages, apart).values()):
        return None
    if not is_proven(version, facts, observation.record):
        return None
    places = places_of(facts)
    return Record(
        version, facts.module_installed, places.url(observation.files), packages,
        tuple(sorted(observation.installed_by_us)),
        tuple(name for name in observation.automatic if name in packages),
        places.record(observation.files))


def _of_installer(observation: Observation, facts: HostFacts) -> Optional[Record]:
    """The driver that NVIDIA's installer has brought, where its file is still there."""
    version, file = observation.runfile, observation.installer.file
    if observation.installer.is_half or not observation.installer.has(version, file.get("sha256", "")) \
            or not is_proven(version, facts, observation.record):
        return None
    return Record(version, facts.module_installed, "", {}, tuple(sorted(observation.installed_by_us)), (),
                  places_of(facts).record(observation.files), file)


def version_there(observation: Observation) -> str:
    """The version of the driver that is installed, '' for none."""
    return catalogue.upstream(_anchor(observation.installed)) or observation.runfile


def _anchor(packages: Mapping[str, str]) -> str:
    """The version of the package that brings the kernel module."""
    return next((version for name, version in sorted(packages.items())
                 if (building.loses([name]) or catalogue.PREBUILT_MODULES.match(name))
                 and catalogue.is_driver_version(version)), "")


# before an exchange


def exchanges(step: Optional[Step]) -> bool:
    """Whether a step takes a driver's packages away, or others for them, or the driver of NVIDIA's installer."""
    return step is not None and (step.action == runfile.REMOVE or any(
        version is not None and catalogue.FAMILY.match(name) for name, version in step.change["before"].items()))


def _leaving(observation: Observation) -> Dict[str, None]:
    """What an exchange leaves to the step after it (superfluous_steps())."""
    return dict.fromkeys(observation.offer.superfluous) if observation.offer else {}


def record_steps(
    observation: Observation, facts: HostFacts, packages: Optional[Step], floating: Iterable[str] = ()
) -> List[Step]:
    """Write down the driver that is there, before the first thing of it changes.

    Where it is recorded already, its change may have begun, and files of the new one may be there.
    """
    if packages is None or not (exchanges(packages) or _leaving(observation)):
        return []
    record, before = there_now(observation, facts, floating), observation.record
    if record is None:
        return []
    coming = {name: version for name, version in packages.change["after"].items() if version is not None}
    stale = set(strangers(observation.kept, record.packages)).intersection(strangers(observation.kept, coming))
    if before is not None and before.is_same_driver(record) and not stale:
        return []
    return [Step(
        NAME, RECORD, record.name, "Until the next change, `state: rolled_back` returns to it.",
        # Put off with the exchange: else the way back to the driver before would be given up for nothing
        packages.disruption,
        change={"before": {"returns to": before.name if before else None}, "after": {"returns to": record.name}},
        parameters={"record": record.to_dict(), "coming": coming}, reversible=False)]


def returns_to(
    observation: Observation, facts: HostFacts, packages: Optional[Step], rest: Sequence[Step] = (),
    floating: Iterable[str] = ()
) -> Dict[str, Dict[str, Any]]:
    """{id of the step: the driver that is there once it is rolled back, and how}; nothing where none was there.

    rest: what is left of an exchange that stopped after packages of the driver before had gone, or are to go by it.
    """
    leaving = _leaving(observation)
    offered = observation.offer.returnable if observation.offer else ()
    if packages is None and rest and observation.record is not None:
        needed = observation.record.changed(observation.installed, leaving)
        if not needed and is_in_place(observation, observation.record):
            return {}
        way = _way_back(observation, facts, observation.record, needed, offered)
        return {rest[0].id: way} if way["how"] != NONE or leaving else {}
    if packages is None or not (exchanges(packages) or leaving):
        return {}
    record = there_now(observation, facts, floating) or observation.record
    if outlived_steps(observation, facts, packages, floating):
        return {}
    if record is None:
        return no_way_back([packages], "the driver that is there is not the one in use, and none before it is recorded")
    needed = record.changed(observation.installed, {**packages.change["after"], **leaving})
    return {packages.id: _way_back(observation, facts, record, needed, offered)}


def _way_back(
    observation: Observation, facts: HostFacts, record: Record, needed: Mapping[str, str], offered: Iterable[str]
) -> Dict[str, Any]:
    way = way_back(record, needed, archives_at_hand(observation), offered)
    if way["how"] == NONE:
        return way
    refused = runfile_plan.refuse_once_gone(observation, record) if record.runfile else \
        precompiled.refuse_way_back(observation.kernels, facts, recorded_target(record))
    return {**way, "how": NONE, "why": refused[0].found} if refused else way


def no_way_back(steps: Sequence[Step], why: str) -> Dict[str, Dict[str, Any]]:
    """{id of the step: that what was there before it does not come back}."""
    return {step.id: {"version": "", "kernel_module": "", "source": "", "how": NONE, "why": why} for step in steps}


def withdraw_steps(observation: Observation, offered: bool = False, requires: Tuple[str, ...] = ()) -> List[Step]:
    """apt is told of the kept files for one transaction alone. offered: this plan tells it of them."""
    if not (observation.offered or offered):
        return []
    return [Step(NAME, WITHDRAW, KEPT_SOURCES_FILE, "The kept packages were a source for one transaction.",
                 change={"before": {"source": "file:%s/" % STORE}, "after": {"source": None}}, depends_on=requires)]


def forget_steps(observation: Observation) -> List[Step]:
    """With the driver goes what was kept of the one before it."""
    if observation.record is None and not observation.kept and not observation.stores:
        return []
    told = observation.record.name if observation.record else "package files"
    return [Step(NAME, FORGET, STORE, "Nothing is left to return from.",
                 change={"before": {"returns to": told}, "after": {"returns to": None}}, reversible=False)]


def outlived_steps(
    observation: Observation, facts: HostFacts, packages: Optional[Step], floating: Iterable[str]
) -> List[Step]:
    """Where packages of a driver come and none is there, others have taken away the one after that of the record: to
    return to it would be to a driver that was not the one before.

    A change of ours that was stopped keeps its record: nothing of a driver may be there then either. So does one
    between packages and NVIDIA's installer, of which nothing tells whether it was stopped between the two.
    """
    record = observation.record
    coming = {name: version for name, version in packages.change["after"].items() if version is not None} \
        if packages else {}
    if packages is None or record is None or record.runfile or not catalogue.family(coming, floating):
        return []
    is_stopped = observation.ours_unfinished or observation.interrupted or bool(
        observation.broken or observation.torn or observation.unfinished)
    there = catalogue.without_companions(catalogue.family(observation.there))
    if there or observation.runfile or observation.installer.is_half or is_stopped \
            or facts.driver_loaded == record.version:
        return []
    return [replace(step, why="That driver is not the one before.", disruption=packages.disruption,
                    parameters={"coming": coming}) for step in forget_steps(observation)]


# the way back


def refuse_record(observation: Observation, roll_back_to: str) -> List[Refusal]:
    record = observation.record
    if record is not None and roll_back_to in ("", record.version):
        return []
    if roll_back_to and version_there(observation) == roll_back_to:
        return []
    return [Refusal(
        "driver.no_record",
        "no record of a driver before the one that is there" if record is None else
        "driver %s is recorded as the one before" % record.version,
        "driver %s" % (roll_back_to or "as it was before the last change"),
        "leave `roll_back_to` empty where another one is recorded; or install the driver that you want "
        "(`state: present` with its `version`)",
        option="roll_back_to" if roll_back_to else "")]


def refuse_way_back(observation: Observation, record: Record) -> List[Refusal]:
    offer = observation.offer
    if offer is None:
        return []
    # Their files on this host count among what is offered, unless nobody could be asked
    way = way_back(record, record.changed(observation.installed), archives_at_hand(observation) if offer.error else (),
                   offer.returnable)
    if way["how"] != NONE and (offer.transaction is not None or not offer.error):
        return []
    found = "; ".join(each for each in (way["why"], offer.error) if each)
    return [Refusal(
        "driver.no_way_back", found,
        "every package of %s" % record.name,
        "let this host reach %s, or put these files into %s; or install another driver (`state: present`)" % (
            record.url or "a source that has them", STORE))]


def offer_steps(observation: Observation, facts: HostFacts, needed: Mapping[str, str]) -> List[Step]:
    """Have the kept packages installed, as far as there are such: apt is told of a repository, dnf and zypper of files.
    """
    files = archives_at_hand(observation)
    kept = {name: version for name, version in needed.items() if is_archived(name, version, files)}
    if not kept:
        return []
    manager = manager_of(facts) or APT
    action, subject = (OFFER, KEPT_SOURCES_FILE) if manager is APT else (CHECK, STORE)
    return [Step(NAME, action, subject, "The packages are on this host, and %s takes them from there." % manager.name,
                 change={"before": dict.fromkeys(kept), "after": kept})]


def file_steps(
    observation: Observation, record: Record, paths: Sequence[str], requires: Tuple[str, ...] = ()
) -> List[Step]:
    steps = []
    for path in paths:
        before, after = observation.files.get(path), recorded_text(observation, record, path)
        if before != after and not _is_same_stream(path, before, after):
            steps.append(file_step(NAME, path, before, after, "It is as it was with %s." % record.name,
                                   requires=requires))
    return steps


def recorded_text(observation: Observation, record: Record, path: str) -> Optional[str]:
    """What a file will be; what others wrote into a file of locks stays there."""
    if path == REPO_FILE and record.url not in (observation.auth.shown or "").splitlines():
        # The password that is there now is another repository's
        return without_login(record.files.get(path))
    return Places.with_ours(path, record.files.get(path), observation.files.get(path))


def _is_same_stream(path: str, before: Optional[str], after: Optional[str]) -> bool:
    """dnf writes that file itself when it likes, so its words are compared."""
    return path == STREAM_FILE and None not in (before, after) and (
        locks.streams_of({path: before}) == locks.streams_of({path: after}))


def before_transaction(observation: Observation, record: Record, facts: HostFacts) -> List[Step]:
    places = places_of(facts)
    return file_steps(observation, record, [path for path in places.recorded if path not in places.after])


def after_transaction(
    observation: Observation, record: Record, facts: HostFacts, packages: Optional[Step]
) -> List[Step]:
    return file_steps(observation, record, places_of(facts).after, (packages.id,) if packages else ())


def superfluous_steps(
    observation: Observation, facts: HostFacts, packages: Optional[Step], subject: str = "what came with the driver",
    why: str = "These packages came with the newer driver alone."
) -> List[Step]:
    """What the exchange does not take away itself goes after it: on the way back, what only the newer driver brought.
    """
    gone = dict(observation.offer.superfluous) if observation.offer else {}
    if not gone:
        return []
    of_driver = bool(facts.driver_loaded) and any(map(catalogue.FAMILY.match, gone))
    return [packages_step(
        NAME, subject, gone, dict.fromkeys(gone), why,
        Disruption.driver_reload if of_driver else Disruption.none, (packages.id,) if packages else (),
        manager=(manager_of(facts) or APT).name, request=gone, purge=True)]
