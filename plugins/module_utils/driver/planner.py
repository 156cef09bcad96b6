# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From what is there to what is wanted of the driver's packages. Pure."""
from __future__ import annotations

import re
from dataclasses import replace
from typing import AbstractSet, Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Union

from ..core.facts import ROLES, HostFacts
from ..core.plan import Disruption, Kept, Plan, Step
from ..core.refusal import Refusal
from ..core.steps import PACKAGES_INSTALL, PACKAGES_REMOVE, packages_step
from ..packages.apt import keys
from ..packages.manager import PackageManager
from ..packages.model import Simulation
from ..packages.refusals import (
    excluded_packages,
    held_packages,
    no_bindings,
    no_space,
    removes_others,
    unsolvable,
)
from . import (
    boot_arguments,
    building,
    by_hand,
    catalogue,
    containerized,
    dkms_originals,
    enrollment,
    kernel_hold,
    parameters,
    peers,
    prebuilt,
    precompiled,
    preinstalled,
    rollback,
    runfile,
    runfile_plan,
    signing,
    staging,
)
from .backends.chosen import backend_of
from .files import places_of
from .kernels import Kernel
from .observation import Observation, Offer, foreseen, kernels_in_use, recorded_target, settled
from .origin import Origin, origin_of
from .policy import Policy
from .record import Record, is_archived
from .target import Target, is_driven, target_of, versions_offered

NAME = "driver"
# On Ubuntu the packages of a branch have the daemon among other programs
_WITH_UNIT = re.compile(r"nvidia-(?:persistenced|compute-utils-\d+(?:-server)?)$")


def plan(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    planned = _planned(observation, policy, facts)
    if not any(step.action == runfile.REMOVE for step in planned.steps):
        return planned
    refusals = runfile_plan.refuse_moved_aside(observation.installer.strays)
    return Plan(refusals=tuple(refusals)) if refusals else planned


def _planned(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    if policy.state == "absent":
        return _plan_absent(observation, policy, facts)
    if policy.state == "rolled_back":
        return _plan_rolled_back(observation, policy, facts)
    if not policy.comes_from.installs:
        refused = preinstalled.refusals(observation.kernels, observation.parts, policy, facts)
        return Plan(refusals=refused, notes=() if refused else preinstalled.notes(observation.parts, facts))
    refusals = _refuse_host(observation, policy, facts)
    if refusals:
        return Plan(refusals=tuple(refusals))
    target = _target(observation, policy, facts)
    if isinstance(target, Refusal):
        return Plan(refusals=(target,))
    refusals = _refuse_target(observation, policy, facts, target)
    if refusals:
        return Plan(refusals=tuple(refusals))
    observation = foreseen(observation, target)
    if policy.state == "staged":
        return _plan_staged(observation, policy, facts, target)
    return _plan_present(observation, policy, facts, target)


def _target(observation: Observation, policy: Policy, facts: HostFacts) -> Union[Target, Refusal]:
    return target_of(policy, facts, observation.installed, observation.offer.versions if observation.offer else {},
                     observation.prebuilt)


def facts_after(observation: Observation, policy: Policy, facts: HostFacts, planned: Plan) -> HostFacts:
    """Facts once the plan is done."""
    if planned.refusals or policy.state == "staged":
        return facts
    if policy.state == "rolled_back":
        return _facts_rolled_back(observation, policy, facts, planned)
    if not policy.comes_from.installs:
        return facts
    if policy.state == "absent":
        removed = any(step.action in (PACKAGES_REMOVE, runfile.REMOVE) or runfile_plan.forgets_modules(step)
                      for step in planned.steps)
        facts = peers.facts_without(observation, facts)
        return facts.but(driver_installed="", driver_boots="", driver_userspace="", module_installed="",
                         key_pending="") if removed else facts
    target = _target(observation, policy, facts)
    if isinstance(target, Refusal):
        return facts
    observation = foreseen(observation, target)
    facts = peers.facts_after(observation, policy, facts, target)
    return _facts_with(
        observation, policy, parameters.facts_after(observation, policy, facts, target), planned, target)


def _facts_with(
    observation: Observation, policy: Policy, facts: HostFacts, planned: Plan, target: Target
) -> HostFacts:
    running = "" if building.running_kernel_gone(observation.kernels, facts) else target.version
    of_installer = any(step.action == runfile_plan.INSTALL for step in planned.steps)
    changes = of_installer or any(
        step.action == PACKAGES_INSTALL and not peers.is_transaction(step) for step in planned.steps)
    brings_unit = not of_installer and any(
        step.action == runfile.REMOVE or _brings_unit(step) for step in planned.steps)
    built = changes or any(step.action in (building.BUILD, precompiled.VERIFY) for step in planned.steps)
    signer = enrollment.unconfirmed(observation, policy, facts, target)
    if signing.asked_for(policy, facts):
        facts = facts.but(key_pending=signer)
    return facts.but(driver_installed=running, driver_boots=target.version, driver_userspace=target.version,
                     driver_changes=changes, driver_by_runfile=of_installer, driver_brings_unit=brings_unit,
                     module_installed=target.module if built else facts.module_installed)


def _brings_unit(step: Step) -> bool:
    """Whether a transaction brings nvidia-persistenced where it was not."""
    return step.action == PACKAGES_INSTALL and any(
        version is not None and step.change["before"].get(name) is None and _WITH_UNIT.match(name)
        for name, version in step.change["after"].items())


def _facts_rolled_back(
    observation: Observation, policy: Policy, facts: HostFacts, planned: Plan
) -> HostFacts:
    if observation.record is None or not any(
            step.action in (PACKAGES_INSTALL, runfile_plan.INSTALL, building.BUILD, precompiled.VERIFY)
            for step in planned.steps):
        return facts
    return _facts_with(observation, policy, facts, planned, recorded_target(observation.record))


# refusals


def _refuse_host(observation: Observation, policy: Policy, facts: HostFacts) -> List[Refusal]:
    """What forbids any installation here."""
    refusals = _refuse_system(observation, policy, facts) or _refuse_guest(policy, facts)
    refusals += facts.refusals_without_gpus()
    if refusals:
        return refusals
    backend = backend_of(facts)
    return (_refuse_foreign(observation, policy, facts) + backend.refuse_host(observation, policy, facts)
            + backend.refuse_broken(observation))


def _refuse_system(observation: Observation, policy: Policy, facts: HostFacts) -> List[Refusal]:
    refusals = []
    if facts.immutable:
        refusals.append(Refusal(
            "driver.system_is_an_image", facts.image_found, "packages of source %s" % policy.source,
            "%s; then set `source` to `preinstalled`" % (facts.image_remedy or "build the driver into the image"),
            option="source"))
    elif observation.brought_by:
        refusals.append(Refusal(
            "driver.image_brings_the_driver", observation.brought_by, "packages of source %s" % policy.source,
            "set `source` to `preinstalled`: the image loads its own driver at every boot, and another one comes with "
            "another image", option="source"))
    elif not is_driven(policy, facts):
        refusals.append(by_hand.refusal(policy, facts, [kernel.release for kernel in observation.kernels]))
    return refusals


def _refuse_guest(policy: Policy, facts: HostFacts) -> List[Refusal]:
    if not facts.vgpu_manager or policy.comes_from.has_guests:
        return []
    return [Refusal(
        "driver.guest_of_vgpu", "virtual GPUs, of vGPU manager %s" % facts.vgpu_manager,
        "the guest driver that came with the vGPU manager, as a package that brings the service for licenses: source "
        "%s has none, and public drivers do not drive virtual GPUs" % policy.source,
        "put the guest driver that came with the vGPU manager (nvidia-linux-grid-580_580.178.04_amd64.deb) into a "
        "repository of your own and set `source` to `local_repository`, or install it yourself and set `source` to "
        "`preinstalled`", option="source")]


def _refuse_foreign(observation: Observation, policy: Policy, facts: HostFacts) -> List[Refusal]:
    refusals = containerized.refusals(observation.container, policy, facts)
    backend, places = backend_of(facts), places_of(facts)
    names = backend.foreign(policy, observation.installed)
    if names and not (policy.migrate and backend.replaces_foreign):
        by_itself = "set `migrate` to true to have them replaced, " if backend.replaces_foreign else \
            "as `migrate` replaces packages with apt alone, " if policy.migrate else ""
        refusals.append(Refusal(
            "driver.packages_of_another_source",
            "driver packages of another source: %s" % _listed(names, observation.installed),
            "all driver packages from source %s" % policy.source,
            "%spurge them first (`%s`), or set `source` to the one they came from" % (
                by_itself, backend.purging(names)),
            option="source"))
    if policy.comes_from.is_installer:
        return refusals + runfile_plan.refuse_host(observation, policy, facts)
    if observation.leftovers and not _goes(observation, policy):
        refusals.append(Refusal(
            "driver.files_of_no_package",
            "files of a driver that no package owns: %s" % ", ".join(observation.leftovers),
            "a driver that the package manager can account for",
            "%srun `nvidia-uninstall` (or remove those files), or set `source` to `preinstalled`" % (
                "set `migrate` to true to have it removed, " if _can_go(observation) else ""), option="source"))
    if observation.foreign_sources:
        refusals.append(Refusal(
            "driver.repository_named_twice",
            "the repository is named in %s too" % ", ".join(observation.foreign_sources),
            "one entry with one key, in %s" % places.sources,
            "remove that entry (the package cuda-keyring may own it)"))
    if policy.from_repository and not origin_of(policy, facts).url:
        refusals.append(Refusal(
            "driver.no_repository_for_system", "%s %s on %s" % (facts.os_id, facts.os_version, facts.arch),
            "a system that NVIDIA's repository has a directory for", "set `repository_url`", option="repository_url"))
    elif policy.from_repository and _keyless(origin_of(policy, facts)):
        refusals.append(Refusal(
            "driver.no_repository_key", "no known key for %s" % origin_of(policy, facts).url,
            "the key that signed the repository",
            "set `repository_key` to the key that lies in that directory, or in its package cuda-keyring",
            option="repository_key"))
    return refusals


def _can_go(observation: Observation) -> bool:
    """Whether what NVIDIA's installer brought can be removed: it would tear gaps into packages of a driver."""
    return bool(observation.to_uninstall) and not catalogue.without_companions(catalogue.family(observation.there))


def _goes(observation: Observation, policy: Policy) -> bool:
    return policy.migrate and _can_go(observation)


def _keyless(origin: Origin) -> bool:
    return not (origin.key_text or origin.key_url or origin.key_file)


def _refuse_target(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> List[Refusal]:
    refusals = _refuse_unsigned(observation, policy, facts, target)
    refusals += parameters.refusals(observation, policy, facts, target)
    refusals += building.refuse_gone(_kernels(observation, target), policy, facts, target)
    refusals += backend_of(facts).refuse_target(policy, facts, target)
    refusals += peers.refusals(observation, policy, facts, target)
    refusals += boot_arguments.refusals(observation.arguments, policy, observation.boot)
    if target.of_installer:
        refusals += runfile_plan.refuse_target(observation, policy, facts, target)
    if observation.offer is None:
        return refusals or peers.refuse_headless(observation, {}, policy, facts, target)
    return refusals or _refuse_offer(observation, observation.offer, policy, facts, target)


def _refuse_unsigned(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> List[Refusal]:
    if target.is_precompiled:
        return precompiled.refuse_signer(observation.kernels, observation.of_rpm.signers, policy, facts, target)
    dkms = {**observation.there, **_coming(observation.offer)}.get("dkms", "")
    return signing.refuse_unsigned(observation.kernels, observation.signing_key, policy, facts, target, dkms)


def _refuse_offer(
    observation: Observation, offer: Offer, policy: Policy, facts: HostFacts, target: Target
) -> List[Refusal]:
    origin = origin_of(policy, facts)
    where = origin.url or "the sources of %s %s" % (facts.os_id, facts.os_version)
    wrong = keys.objection(offer.key, origin.fingerprint) if origin.fingerprint and offer.key else ""
    if wrong:
        return [Refusal("driver.repository_key_not_the_wanted", wrong,
                        "the key %s, and no other beside it: %s trusts every key of the file" % (
                            origin.fingerprint, backend_of(facts).manager.name),
                        "check `repository_key` and `repository_key_fingerprint`",
                        option="repository_key_fingerprint")]
    if offer.error:
        return [offer.refusal or Refusal(
            "driver.repository_unreadable", offer.error, "the index of %s" % where,
            "check `repository_url` and `repository_key`, and this host's network and proxy",
            option="repository_url")]
    if target.of_installer:
        return (runfile_plan.refuse_tools(offer, policy, facts, target, where)
                or _refuse_transaction(observation, offer, policy, facts, target)
                or runfile_plan.refuse_headless(observation, _coming(offer), policy, facts, target))
    offered = versions_offered(policy, facts, offer.versions)
    enabled = () if origin.url else backend_of(facts).enabled_first(policy, facts, target)
    if not target.version or not target.package_version(target.packages.anchor, offer.versions):
        return [Refusal(
            "driver.version_not_offered",
            "%s has %s%s" % (where, "drivers " + ", ".join(offered) if offered else "no driver",
                             prebuilt.told_unread(offer.unread)),
            "driver %s with the %s kernel module" % (policy.version or "of any version", target.module),
            "mend the source that cannot be read" if offer.unread and not origin.url else
            "set `version` to one of these, or choose another repository" if offered or not enabled else
            "enable the repositories that have it (%s)" % ", ".join(enabled), option="version")]
    return (_refuse_incomplete(offer, target, where) or _refuse_transaction(observation, offer, policy, facts, target)
            or building.refuse_headless(_kernels(observation, target), _coming(offer), policy, facts, target)
            or peers.refuse_offer(observation, offer, policy, facts, where)
            or peers.refuse_headless(observation, _coming(offer), policy, facts, target))


def _kernels(observation: Observation, target: Target) -> Tuple[Kernel, ...]:
    """Those that can be booted; whose modules come built, no headers are asked for."""
    if not target.is_precompiled:
        return observation.kernels
    return tuple(replace(kernel, headers=precompiled.has_module(kernel, target)) for kernel in observation.kernels)


def _refuse_incomplete(offer: Offer, target: Target, where: str) -> List[Refusal]:
    lacking = [name for name in target.packages.required if not target.package_version(name, offer.versions)]
    if not lacking:
        return []
    there = "; ".join("%s: %s" % (name, ", ".join(offer.versions.get(name, ())) or "none") for name in lacking)
    return [Refusal("driver.version_incomplete",
                    "%s has no %s in version %s (%s)" % (where, ", ".join(lacking), target.version, there),
                    "every package of the driver in one version", "set `version` to one that is complete there",
                    option="version")]


def _refuse_transaction(
    observation: Observation, offer: Offer, policy: Policy, facts: HostFacts, target: Target
) -> List[Refusal]:
    done, backend = offer.transaction, backend_of(facts)
    manager = backend.manager
    leave = {*offer.superfluous, *((*done.removes, *done.leaves) if done else ())}
    stay = sorted(name for name in target.leaves if name in observation.installed and name not in leave)
    if stay and not (done and done.problem):
        return [Refusal("driver.modules_do_not_leave", "%s, which something else needs" % _listed(
            stay, observation.installed), "no modules but those of driver %s with the %s kernel module" % (
                target.version, target.module),
            "see what needs them (`%s`), and remove it first" % backend.purging(stay))]
    # dnf's locks leave versions to choose from, and keep no package from being removed
    goes = sorted(name for name in {*offer.superfluous, *(done.removes if done else ())} if name in observation.held)
    if goes and not (done and done.problem):
        return [_held({name: observation.held[name] for name in goes}, target, manager)]
    if done is None:
        return []
    if done.problem:
        return _refuse_held(observation, done, target, manager) or _refuse_excluded(done, target) or [unsolvable(
            done, offer.unread, "driver %s" % target.version, manager.name,
            backend.enabled_first(policy, facts, target))]
    others = sorted(name for name, version in catalogue.family(done.installs, target.packages.floating).items()
                    if catalogue.upstream(version) != target.version)
    if others:
        return [Refusal("driver.versions_mixed",
                        "%s would bring in %s" % (manager.name, _listed(others, done.installs)),
                        "all driver packages in version %s" % target.version,
                        "set `version` to one that is complete in the repository", option="version")]
    if offer.of_others:
        return [Refusal("driver.sources_mixed",
                        "%s would bring in %s, from another source" % (manager.name, _listed(
                            sorted(offer.of_others), offer.of_others)),
                        "all driver packages from source %s" % policy.source,
                        "set `version` to one that is complete there, or disable the other repository while the driver "
                        "is installed", option="version")]
    lost = sorted(name for name in done.removes if name not in done.leaves and not catalogue.FAMILY.match(name))
    if lost:
        return [removes_others(lost, manager.name)]
    return _refuse_tools(observation, manager) + no_space(offer.space, done, backend.make_room)


def _refuse_held(
    observation: Observation, done: Simulation, target: Target, manager: PackageManager
) -> List[Refusal]:
    """A hold is somebody's decision; ours is a pin, which names the version that the policy names."""
    family = catalogue.family(observation.held, target.packages.floating)
    names = done.held or tuple(name for name, version in sorted(family.items())
                               if catalogue.upstream(version) != target.version)
    versions = {name: observation.held.get(name, done.before.get(name, "")) for name in names}
    return [_held(versions, target, manager)] if names else []


def _held(versions: Mapping[str, str], target: Target, manager: PackageManager) -> Refusal:
    return held_packages(versions, "driver %s in their place" % target.version,
                         ", or ask for the version that is held", manager.name)


def _refuse_excluded(done: Simulation, target: Target) -> List[Refusal]:
    return [excluded_packages(done.excluded, "driver %s with everything it depends on" % target.version)] \
        if done.excluded else []


def _refuse_tools(observation: Observation, manager: PackageManager) -> List[Refusal]:
    return [] if observation.bindings else [no_bindings(manager.name)]


def _coming(offer: Optional[Offer]) -> Mapping[str, str]:
    return offer.transaction.installs if offer and offer.transaction else {}


def _listed(names: Sequence[str], versions: Mapping[str, str]) -> str:
    return ", ".join("%s %s" % (name, versions[name]) for name in names)


# steps


def _plan_present(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> Plan:
    packages, backend = _packages_step(observation, facts, target), backend_of(facts)
    gone = _removal(observation, policy, facts, target, packages)
    exchange = next((step for step in (packages, *gone) if rollback.exchanges(step)), None) \
        if target.of_installer else packages
    record = rollback.record_steps(observation, facts, exchange, target.packages.floating)
    if not target.of_installer:
        record += rollback.outlived_steps(observation, facts, packages, target.packages.floating)
    # What is fetched is resolved on the host, by the hold that is there
    first = [*_first_steps(observation, policy, facts, packages is not None), *_kernel_steps(observation, facts)]
    fetched = _fetch_steps(observation, policy, facts, target, packages)
    ahead, _untold = _stage_steps(observation, policy, facts, target, packages, fetched)
    # A download may be staged by a run of its own: it stands first where nothing that is recorded goes before it
    is_recorded_first = any(step.subject in places_of(facts).recorded for step in first)
    steps = [*record, *first, *fetched, *ahead] if is_recorded_first else [*first, *fetched, *ahead, *record]
    # What builds a module comes before an installer's driver goes for another; packages of a driver come after that
    before = fetched + ([packages] if packages and target.of_installer else [])
    removal = [replace(step, depends_on=tuple(each.id for each in before)) for step in gone]
    if removal and packages and not target.of_installer:
        packages = replace(packages, depends_on=(*packages.depends_on, removal[0].id))
        steps += removal
    steps += backend.steps_before(observation, policy, facts, target, packages)
    steps += parameters.steps(observation, policy, facts, target)
    steps += enrollment.steps(observation, policy, facts, target)
    steps += [packages] if packages else []
    steps += backend.steps_after(observation, policy, target, packages)
    install = runfile_plan.install_steps(
        observation, facts, target, [step.id for step in (*before, *removal)]) if target.of_installer else []
    steps += [*removal, *install] if target.of_installer else []
    builds = _module_steps(observation, policy, facts, target, packages,
                           _built_ahead(observation, target, packages, ahead),
                           peers.outdated(observation, policy, facts, target),
                           frozenset(peers.with_peer_memory(observation, policy, facts, target)))
    builds = runfile_plan.after(builds, install)
    others = rollback.superfluous_steps(
        observation, facts, packages, "other kernel modules of NVIDIA's",
        "They are of another driver or were made otherwise, and lie where those of driver %s are." % target.version)
    # Which modules are loaded is known once the others have gone
    builds = [replace(step, depends_on=(*step.depends_on, *(each.id for each in others))) for step in builds]
    forgotten = [] if target.is_precompiled else dkms_originals.forget_steps(
        observation, [step for step in (packages, *others) if step])
    steps += others + forgotten + builds + peers.steps(observation, policy, facts, target, packages, builds)
    steps += boot_arguments.steps(observation.arguments, policy, [kernel.release for kernel in observation.kernels],
                                  observation.files, observation.originals)
    steps += rollback.withdraw_steps(observation)
    steps += staging.withdraw_steps(observation, target.version, packages, ahead)
    steps += [] if target.of_installer else runfile_plan.forget_steps(observation, removal)
    rest = [*install, *others, *builds]
    way = {**rollback.returns_to(observation, facts, exchange, rest, target.packages.floating),
           **containerized.no_way_back(observation.container, packages, facts)}
    if not target.of_installer:
        way.update(rollback.no_way_back(removal, "what NVIDIA's installer brought is in no package"))
    return Plan(steps=tuple(steps), returns_to=way,
                requirements=(*building.requirements(observation.kernels, facts, target),
                              *boot_arguments.requirements(policy, observation.boot, facts),
                              *enrollment.requirements(observation, policy, facts, target)),
                kept=tuple(Kept("GPU %s (10de:%s)" % (gpu.address, gpu.device_id), "it " + ROLES[gpu.role])
                           for gpu in facts.other_gpus),
                notes=tuple(_notes(observation, policy, facts, target)))


def _kernel_steps(observation: Observation, facts: HostFacts) -> List[Step]:
    return kernel_hold.steps(observation.kernel_hold, observation.files, observation.originals, facts)


def _module_steps(
    observation: Observation, policy: Policy, facts: HostFacts, target: Target, packages: Optional[Step],
    built_ahead: AbstractSet[str] = frozenset(), outdated: Optional[Mapping[str, str]] = None,
    peer_memory: AbstractSet[str] = frozenset()
) -> List[Step]:
    """Of modules that DKMS builds, or that come built."""
    if target.is_precompiled:
        return precompiled.verify_steps(
            observation.kernels, policy, facts, target, packages, observation.of_rpm.left.doubtful)
    return building.build_steps(
        observation.kernels, observation.signing_key, policy, facts, target, packages, built_ahead, outdated,
        peer_memory, observation.of_rpm.left.doubtful)


def _plan_staged(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> Plan:
    packages = _packages_step(observation, facts, target)
    first = _first_steps(observation, policy, facts, False)
    fetched = _fetch_steps(observation, policy, facts, target, packages)
    held = _kernel_steps(observation, facts) if fetched else []
    ahead, notes = _stage_steps(observation, policy, facts, target, packages, fetched)
    withdrawn = staging.withdraw_steps(observation, target.version, packages, ahead)
    return Plan(steps=(*withdrawn, *first, *held, *fetched, *ahead), notes=tuple(notes))


def _stage_steps(
    observation: Observation, policy: Policy, facts: HostFacts, target: Target, packages: Optional[Step],
    fetched: List[Step]
) -> Tuple[List[Step], List[str]]:
    """(steps, notes): as downloads, they begin a whole installation too, so that a module that does not build leaves
    the driver that is there alone."""
    backend = backend_of(facts)
    obstacle = "" if backend.builds_ahead else "packages of %s are not unpacked ahead" % backend.manager.name
    if origin_of(policy, facts).url.startswith("file:"):
        obstacle = "packages of a directory on this host (file:) are not fetched ahead"
    return staging.stage_steps(observation, facts, target, packages, fetched, obstacle)


def _built_ahead(
    observation: Observation, target: Target, packages: Optional[Step], ahead: List[Step]
) -> FrozenSet[str]:
    """Kernels whose module DKMS will not have to compile."""
    there: Dict[str, Optional[str]] = {**observation.installed, **(packages.change["after"] if packages else {})}
    return frozenset(kernel.release for kernel in observation.kernels
                     if staging.is_usable(observation.staged, kernel.release, target.version, there)).union(
                         step.subject for step in ahead)


def _first_steps(observation: Observation, policy: Policy, facts: HostFacts, transaction_follows: bool) -> List[Step]:
    """What the manager began is finished, and the repository is ours; what that takes may come from there."""
    backend = backend_of(facts)
    return backend.finishing_steps(
        observation, facts, transaction_follows, backend.repository_steps(observation, policy, facts))


def _removal(
    observation: Observation, policy: Policy, facts: HostFacts, target: Target, packages: Optional[Step]
) -> List[Step]:
    """What NVIDIA's installer has brought before."""
    if target.of_installer:
        return runfile_plan.removal_steps(observation, facts, target)
    if packages is None or not _goes(observation, policy):
        return []
    return runfile.removal(observation.to_uninstall, observation.leftovers, bool(facts.driver_loaded))


def _fetch_steps(
    observation: Observation, policy: Policy, facts: HostFacts, target: Target, packages: Optional[Step]
) -> List[Step]:
    fetched = _download_steps(observation, policy, facts, target, packages)
    return fetched + (runfile_plan.fetch_steps(observation, policy, facts, target) if target.of_installer else [])


def _download_steps(
    observation: Observation, policy: Policy, facts: HostFacts, target: Target, packages: Optional[Step]
) -> List[Step]:
    """Staging begins with it as a whole installation does, so that the two are one plan."""
    if packages is None or "files" in packages.parameters or origin_of(policy, facts).url.startswith("file:"):
        return []
    backend = backend_of(facts)
    step = backend.download_step(observation, target, packages)
    if all(is_archived(name, version, observation.archives)
           for name, version in step.change["after"].items() if observation.installed.get(name) != version):
        return []
    return [step]


def _packages_step(observation: Observation, facts: HostFacts, target: Target) -> Optional[Step]:
    if observation.offer is None or observation.offer.transaction is None:
        return None
    done = observation.offer.transaction
    if not done.installs and not done.removes:
        return None
    driver = {} if settled(target, observation) else _of_family(done.request, target)
    before, after = done.change
    before = {name: version or observation.installed.get(name) for name, version in before.items()}
    swapped = bool(driver) and bool(facts.driver_loaded) and not building.runs_already(facts, target)
    subject, why = "driver %s" % target.version if driver else "kernel headers", _why(observation, target, driver)
    if target.of_installer and driver:
        swapped = bool(target.leaves) and bool(facts.driver_loaded)
        subject, why = runfile_plan.packages_words(target)
    # What a removal names goes, so that it does not name what is to stay
    request = {**done.request, **dict.fromkeys(done.leaves)} if done.installs or target.of_installer else {
        name: before[name] for name in done.leaves if name in after}
    step = packages_step(
        NAME, subject, before, after, why,
        Disruption.driver_reload if swapped else Disruption.none,
        manager=backend_of(facts).manager.name, request=request,
        automatic=list(done.named), update_cache=True, allow_downgrade=done.allow_downgrade,
        **_without(observation.offer))
    # Also where DKMS is there, and all that changes is that packages of a driver leave
    return replace(step, action=PACKAGES_INSTALL) if target.of_installer else step


def _without(offer: Offer) -> Dict[str, Any]:
    """Repositories that the transaction leaves out, and files that it takes packages from."""
    named: Dict[str, Any] = {"without": list(offer.without)} if offer.without else {}
    return {**named, "files": dict(offer.at_hand)} if offer.at_hand else named


def _of_family(request: Mapping[str, str], target: Target) -> Dict[str, str]:
    """Those of the driver among what is asked for."""
    return {name: version for name, version in request.items()
            if name in target.packages.required + target.packages.optional or catalogue.FAMILY.match(name)}


def _why(observation: Observation, target: Target, driver: Mapping[str, str]) -> str:
    if not driver:
        return "The kernel module is built for every kernel that can be booted."
    present = catalogue.upstream(observation.installed.get(target.packages.anchor, ""))
    others = {catalogue.upstream(observation.installed[name]) for name in filter(building.SOURCE.match, target.leaves)
              if name in observation.installed}
    present = present or "".join(others.difference((target.version,)))
    module = "with the %s kernel module" % target.module
    if target.replaces:
        return "Driver %s %s; packages of another source leave for it." % (target.version, module)
    kind = prebuilt.kind_there(target.leaves)
    of_same = any(building.SOURCE.match(name) or catalogue.generation_of(name) or catalogue.EL_MODULES.match(name)
                  for name in target.leaves)
    if target.leaves and (kind not in ("", target.build) or not of_same):
        return "Driver %s %s, %s." % (
            target.version, module, "which comes built and signed: what DKMS builds leaves"
            if target.is_precompiled else "built here by DKMS: modules that came built leave")
    if not present:
        return "Driver %s %s, one exact version for every package." % (target.version, module)
    return "Driver %s %s takes the place of %s, in one transaction." % (target.version, module, present)


def _notes(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> List[str]:
    coming = _coming(observation.offer)
    notes = precompiled.notes(observation.kernels, observation.installed, coming, policy, facts, target) \
        if target.is_precompiled else building.notes(
            observation.kernels, observation.signing_key, observation.boot, coming, policy, facts, target)
    notes += runfile_plan.notes(observation, target) if target.of_installer else []
    notes += parameters.notes(observation, policy, facts, target)
    notes += peers.notes(observation, policy, facts, target)
    notes += boot_arguments.notes(observation.arguments, policy, observation.boot)
    notes += backend_of(facts).notes(observation, coming, facts, target)
    notes += catalogue.notes_on(catalogue.branch_wanted(target.version), observation.month)
    if observation.offer:
        notes += ["A source of this host that is not ours cannot be read, and was left out: %s" % each
                  for each in observation.offer.unread]
    return notes


# rolled_back


def _plan_rolled_back(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    # First, as how to install a driver here is no answer where there is none to return to
    refusals = rollback.refuse_record(observation, policy.roll_back_to) or _refuse_system(observation, policy, facts)
    record = observation.record
    if not refusals and record is not None and record.runfile:
        return _plan_back_to_installers(observation, record, policy, facts)
    if refusals or record is None or policy.roll_back_to not in ("", record.version):
        there = rollback.version_there(observation)
        return Plan(refusals=tuple(refusals)) if refusals else Plan(steps=(
            *rollback.withdraw_steps(observation), *staging.withdraw_steps(observation, there, None)))
    target = recorded_target(record)
    refusals = _refuse_rolled_back(observation, record, policy, facts, target)
    if refusals:
        return Plan(refusals=tuple(refusals))
    packages = _packages_step(observation, facts, target)
    of_installer = runfile.removal(observation.to_uninstall, observation.leftovers, bool(facts.driver_loaded))
    steps = rollback.before_transaction(observation, record, facts)
    offered: List[Step] = []
    if packages:
        packages = replace(
            packages, subject=record.name, why="Driver %s was there before the last change." % record.version,
            depends_on=tuple(step.id for step in of_installer))
        offered = rollback.offer_steps(observation, facts, record.changed(observation.installed))
        of_installer = [replace(step, depends_on=tuple(each.id for each in offered)) for step in of_installer]
        # Put off with the transaction that they are for
        steps, offered = ([replace(step, disruption=packages.disruption) for step in each]
                          for each in (steps, offered))
    steps = backend_of(facts).finishing_steps(observation, facts, packages is not None, [*steps, *offered], True)
    steps += enrollment.request_steps(observation, policy, facts, target)
    steps += [*of_installer, packages] if packages else []
    steps += rollback.after_transaction(observation, record, facts, packages)
    builds = _module_steps(observation, policy, facts, target, packages)
    superfluous = rollback.superfluous_steps(observation, facts, packages)
    goes_first = target.is_precompiled or any(
        catalogue.EL_MODULES.match(name) for step in superfluous for name in step.change["after"])
    forgotten = [] if target.is_precompiled else dkms_originals.forget_steps(
        observation, [step for step in (packages, *superfluous) if step])
    if goes_first:
        # What DKMS has built is loaded before what came built, and on EL either lies in the place of the other: what
        # there is then is looked at once the other is gone
        gone = tuple(step.id for step in superfluous)
        builds = [replace(step, depends_on=step.depends_on + gone) for step in builds]
        steps += superfluous
    steps += forgotten + builds + peers.build_steps(observation, policy, facts, target, packages, builds)
    steps += [] if goes_first else superfluous
    steps += rollback.withdraw_steps(observation, any(step.action == rollback.OFFER for step in offered),
                                     (packages.id,) if packages else ())
    steps += staging.withdraw_steps(observation, target.version, packages)
    return Plan(steps=tuple(steps), requirements=(*building.requirements(observation.kernels, facts, target),
                                                  *enrollment.requirements(observation, policy, facts, target)))


def _plan_back_to_installers(observation: Observation, record: Record, policy: Policy, facts: HostFacts) -> Plan:
    """To a driver of NVIDIA's installer, whose file is still there."""
    if policy.roll_back_to not in ("", record.version):
        return Plan(steps=tuple(staging.withdraw_steps(observation, rollback.version_there(observation), None)))
    target = recorded_target(record)
    refusals = (runfile_plan.refuse_way_back(observation, record, target)
                or _refuse_unsigned(observation, policy, facts, target)
                or building.refuse_gone(observation.kernels, policy, facts, target)
                or runfile_plan.refuse_target(observation, policy, facts, target))
    if refusals:
        return Plan(refusals=tuple(refusals))
    observation = foreseen(observation, target)
    removal = runfile_plan.removal_steps(observation, facts, target)
    install = runfile_plan.install_steps(observation, facts, target, [step.id for step in removal])
    install = [replace(step, why="Driver %s was there before the last change." % record.version) for step in install]
    builds = runfile_plan.after(_module_steps(observation, policy, facts, target, None), install)
    return Plan(
        steps=(*rollback.before_transaction(observation, record, facts),
               *enrollment.request_steps(observation, policy, facts, target), *removal,
               *install, *builds,
               *rollback.after_transaction(observation, record, facts, None),
               *staging.withdraw_steps(observation, target.version, None)),
        notes=tuple(runfile_plan.notes(observation, target)),
        requirements=(*building.requirements(observation.kernels, facts, target),
                      *enrollment.requirements(observation, policy, facts, target)))


def _refuse_rolled_back(
    observation: Observation, record: Record, policy: Policy, facts: HostFacts, target: Target
) -> List[Refusal]:
    offer = observation.offer
    refusals = (backend_of(facts).refuse_broken(observation) or rollback.refuse_way_back(observation, record)
                or _refuse_unsigned(observation, policy, facts, target)
                or building.refuse_gone(_kernels(observation, target), policy, facts, target))
    if refusals or offer is None:
        return refusals
    return (_refuse_transaction(observation, offer, policy, facts, target)
            or precompiled.refuse_way_back(observation.kernels, facts, target)
            or building.refuse_headless(_kernels(observation, target), _coming(offer), policy, facts, target))


# absent


def _plan_absent(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    backend = backend_of(facts)
    refusals = backend.refuse_broken(observation) if policy.comes_from.installs else []
    leaving, kept = _leaving(observation, facts)
    held = sorted(name for name in leaving if name in observation.held)
    if held:
        refusals.append(held_packages({name: observation.held[name] for name in held}, "packages that may be removed",
                                      manager=backend.manager.name))
    if observation.hidden:
        refusals.append(excluded_packages(observation.hidden, "packages that may be removed"))
    if leaving:
        refusals += _refuse_tools(observation, backend.manager)
    steps = staging.withdraw_steps(observation, "", None)
    steps += runfile_plan.absent_steps(observation, facts)
    steps += backend.finish_before_removal(observation, facts, leaving) if observation.installed_by_us else []
    steps += dkms_originals.forget_all(observation)
    if leaving:
        steps.append(packages_step(
            NAME, "driver", dict(leaving), dict.fromkeys(leaving),
            "These packages came with the driver.",
            Disruption.driver_reload if facts.driver_loaded else Disruption.none, manager=backend.manager.name,
            request=dict(leaving), purge=True, all_of_ours=True, **backend.removal_parameters(observation, leaving)))
    steps += backend.steps_back(observation, policy, facts)
    steps += boot_arguments.removal(observation.arguments, observation.files, observation.originals)
    steps += rollback.withdraw_steps(observation) + rollback.forget_steps(observation)
    return Plan(steps=() if refusals else tuple(steps), refusals=tuple(refusals),
                notes=tuple(boot_arguments.notes(observation.arguments, policy, observation.boot)),
                kept=(*(Kept("package " + name, why) for name, why in sorted(kept.items())),
                      *enrollment.kept(observation, policy, facts)))


def _leaving(observation: Observation, facts: HostFacts) -> Tuple[Dict[str, str], Dict[str, str]]:
    """({package of ours to remove: version}, {package of ours that stays: why})."""
    in_use = kernels_in_use(facts)
    leaving = {name: observation.installed_by_us[name] for name in observation.removable if name not in in_use}
    kept = {name: "this kernel runs or boots next" if name in in_use else "another package needs it"
            for name in observation.installed_by_us if name not in leaving}
    return leaving, kept
