# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""RDMA, GPUDirect Storage and GDRCopy: the modules beside the driver's that they need. Pure.

The driver's own module is there before any of them is built, and each is built anew with every build of it: they are
made against its source, and its flavour. What loads and unloads them is the activation, which reads PEERS_FILE in
HostFacts.peer_modules.
"""
from __future__ import annotations

import re
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.facts import OPEN, HostFacts
from ..core.plan import Disruption, Step
from ..core.refusal import Refusal
from ..core.steps import command_step, file_step, packages_step, restore_step
from ..core.versions import version_key
from ..hardware.peer_modules import PEER_MODULES, PEERMEM, PEERS_FILE, modules_in, modules_text
from ..packages.managers import APT, manager_of
from ..packages.refusals import held_packages, removes_others, unsolvable
from . import building
from .kernels import Kernel
from .observation import Observation, Offer
from .peer_builds import packages_missing, packages_wanted, wanted_products
from .policy import DMABUF, NO_RDMA, PEER_MEMORY, Policy
from .signing import asked_for
from .tables.peers import FIRST_DMABUF_KERNEL, FIRST_FS_OPEN_ONLY, GDS
from .target import Target

NAME = "driver"
SUBJECT = "GPUDirect modules"
BUILD, UNLOAD = "peer.build", "module.unload"


def rdma_way(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> str:
    """DMABUF, PEER_MEMORY or NO_RDMA; only of use where it is not refused."""
    if policy.rdma != "auto":
        return policy.rdma
    return DMABUF if not _no_dmabuf(facts, target) else PEER_MEMORY


def wanted_modules(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> Tuple[str, ...]:
    wanted = {peer.module for peer in wanted_products(policy)}
    if rdma_way(observation, policy, facts, target) == PEER_MEMORY:
        wanted.add(PEERMEM)
    return tuple(name for name in PEER_MODULES if name in wanted)


def _no_dmabuf(facts: HostFacts, target: Target) -> str:
    """Why memory cannot be shared by DMA-BUF, '' where it can. GPUs that the open module drives all can."""
    if target.module != OPEN:
        return "the %s kernel module" % target.module
    old = [release for release in dict.fromkeys((facts.kernel, facts.boot_kernel))
           if release and _kernel_key(release) < FIRST_DMABUF_KERNEL]
    return "kernel %s" % ", ".join(old) if old else ""


def _kernel_key(release: str) -> Tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release)[:2])


def _no_peer_memory(observation: Observation, facts: HostFacts) -> str:
    """Why nvidia-peermem could not be loaded, '' where it can be."""
    lacking = [kernel.release for kernel in observation.kernels
               if building.essential(kernel, facts) and kernel.release not in observation.peers.registers]
    return "no ib_register_peer_memory_client in the Module.symvers of kernel %s, nor of an OFED below " \
        "/usr/src/ofa_kernel" % ", ".join(lacking) if lacking else ""


# refusals


def refusals(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> List[Refusal]:
    return _refuse_rdma(observation, policy, facts, target) + _refuse_products(observation, policy, facts, target)


def _refuse_rdma(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> List[Refusal]:
    if policy.rdma == NO_RDMA:
        return []
    no_dmabuf, no_peermem = _no_dmabuf(facts, target), _no_peer_memory(observation, facts)
    if policy.rdma == DMABUF and no_dmabuf:
        return [Refusal(
            "driver.no_dmabuf", no_dmabuf, "the open kernel module and kernel %d.%d or newer, for DMA-BUF"
            % FIRST_DMABUF_KERNEL,
            "set `kernel_module` to `open` where the GPUs have it, boot a newer kernel, or set `rdma` to `peermem`",
            option="rdma")]
    if policy.rdma == "auto" and no_dmabuf and no_peermem:
        return [Refusal(
            "driver.no_rdma", "%s; %s" % (no_dmabuf, no_peermem),
            "DMA-BUF (the open kernel module, kernel %d.%d or newer), or an RDMA stack for nvidia-peermem"
            % FIRST_DMABUF_KERNEL,
            "set `kernel_module` to `open` where the GPUs have it, install DOCA-OFED or MLNX_OFED, or set `rdma` to "
            "`none`", option="rdma")]
    if rdma_way(observation, policy, facts, target) != PEER_MEMORY:
        return []
    found = []
    if no_peermem:
        found.append(Refusal(
            "driver.no_peer_memory", no_peermem,
            "an RDMA stack that nvidia-peermem can register with, when it is built: else it does not load",
            "install DOCA-OFED or MLNX_OFED with its development files and run this again, which builds the module "
            "anew, or set `rdma` to `dmabuf`", option="rdma"))
    elif target.is_precompiled and any(building.essential(kernel, facts) for kernel in observation.kernels
                                       if kernel.release in outdated(observation, policy, facts, target)):
        found.append(Refusal(
            "driver.peer_memory_of_precompiled",
            "modules that come built, whose nvidia-peermem was built without this RDMA stack",
            "an nvidia-peermem that is built here, against the RDMA stack",
            "set `build` to `dkms`, or `rdma` to `dmabuf`", option="rdma"))
    if observation.peers.predecessor:
        found.append(Refusal(
            "driver.nv_peer_mem", observation.peers.predecessor, "nvidia-peermem, which comes with the driver",
            "remove the package of nv_peer_mem (nvidia-peer-memory-dkms or nvidia-peer-memory) and unload it: only one "
            "of the two can register"))
    return found


def _refuse_products(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> List[Refusal]:
    found = []
    for peer, names in packages_wanted(policy, facts).items():
        if not names:
            found.append(Refusal(
                "driver.peer_not_in_source", "no package of %s in source %s on %s %s" % (
                    peer.called, policy.source, facts.os_id, facts.os_version),
                "a source that has %s" % peer.called,
                "set `source` to `nvidia_repository`, or `%s` to `false`" % peer.option, option=peer.option))
        elif peer is GDS and target.module != OPEN:
            versions = observation.offer.peer_versions.get(names[0], ()) if observation.offer else ()
            version = observation.installed.get(names[0]) or next(iter(versions), "")
            if version_key(version) >= version_key(FIRST_FS_OPEN_ONLY):
                found.append(Refusal(
                    "driver.gds_needs_open_module",
                    "%s %s and the %s kernel module" % (names[0], version, target.module),
                    "the open kernel module: nvidia-fs needs it since %s" % FIRST_FS_OPEN_ONLY,
                    "set `kernel_module` to `open` where the GPUs have it, or `gds` to `false`", option="gds"))
    return found


def refuse_offer(observation: Observation, offer: Offer, policy: Policy, facts: HostFacts, where: str) -> List[Refusal]:
    """Refuse what the sources do not have, or could not bring alone."""
    lacking = sorted(name for name in packages_missing(policy, facts, observation.installed)
                     if not offer.peer_versions.get(name))
    if lacking:
        return [Refusal(
            "driver.peer_not_offered", "%s has no %s" % (where, ", ".join(lacking)),
            "the packages of %s" % " and ".join(peer.called for peer in wanted_products(policy)),
            "bring them into the repository, or set `%s` to `false`" % "`, `".join(
                peer.option for peer in wanted_products(policy)), option=wanted_products(policy)[0].option)]
    done = offer.peers
    if done is None:
        return []
    if done.problem:
        return [held_packages({name: done.before.get(name, "") for name in done.held}, SUBJECT)] if done.held else [
            unsolvable(done, offer.unread, SUBJECT)]
    return [removes_others(done.removes)] if done.removes else []


def refuse_headless(
    observation: Observation, coming: Mapping[str, str], policy: Policy, facts: HostFacts, target: Target
) -> List[Refusal]:
    """Refuse where the kernel that runs, or the one that boots next, could not get such a module."""
    for kernel in observation.kernels:
        lacking = [name for name in wanted_modules(observation, policy, facts, target)
                   if name not in observation.peers.built.get(kernel.release, ())]
        if lacking and building.essential(kernel, facts) and not building.buildable(kernel, coming):
            return [Refusal(
                "driver.peer_without_headers",
                "no headers for kernel %s, installed or in the host's sources" % kernel.release,
                "headers to build %s with" % ", ".join(lacking),
                "install %s" % building.headers_package(kernel.release, facts)
                + ("" if policy.kernel_headers else "; `kernel_headers` is off"),
                option="" if policy.kernel_headers else "kernel_headers")]
    return []


# steps


def outdated(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> Dict[str, str]:
    """{kernel: why the driver's modules are built for it again, although they are there}.

    An OFED is found beside kernels that it was not built for, too: there nvidia-peermem does not load, however often it
    is built.
    """
    essential = {kernel.release for kernel in observation.kernels if building.essential(kernel, facts)}
    return {release: "Its nvidia-peermem was built before the RDMA stack came, and does not load."
            for release in with_peer_memory(observation, policy, facts, target)
            if PEERMEM not in observation.peers.built.get(release, ())
            and (release in essential or not _has_failed(observation, release, PEERMEM, target))}


def with_peer_memory(
    observation: Observation, policy: Policy, facts: HostFacts, target: Target
) -> Tuple[str, ...]:
    """Kernels whose nvidia-peermem is to be built for an RDMA stack."""
    return observation.peers.registers if rdma_way(observation, policy, facts, target) == PEER_MEMORY else ()


def _has_failed(observation: Observation, release: str, module: str, target: Target) -> bool:
    return observation.peers.failed.get(release, {}).get(module) == target.version


def steps(
    observation: Observation, policy: Policy, facts: HostFacts, target: Target, packages: Optional[Step],
    builds: Sequence[Step]
) -> List[Step]:
    """Packages, modules and the file, after the driver's own packages and builds."""
    driver = tuple(step.id for step in (packages, *builds) if step is not None)
    brought = _packages_steps(observation, facts, driver)
    built = build_steps(observation, policy, facts, target, packages, builds, brought)
    requires = (*driver, *(step.id for step in (*brought, *built)))
    gone = _removal_steps(observation, policy, facts, target)
    return [*brought, *built, *gone, *_file_steps(
        observation, policy, facts, target, (*requires, *(step.id for step in gone)))]


def _packages_steps(observation: Observation, facts: HostFacts, requires: Tuple[str, ...]) -> List[Step]:
    done = observation.offer.peers if observation.offer else None
    if done is None or not done.installs:
        return []
    before, after = done.change
    before = {name: version or observation.installed.get(name) for name, version in before.items()}
    return [packages_step(
        NAME, SUBJECT, before, after, "Their modules are built against the driver, which is there by then.",
        Disruption.none, requires, manager=_manager(facts), request=dict(done.request), automatic=list(done.named),
        update_cache=True, allow_downgrade=done.allow_downgrade)]


def _manager(facts: HostFacts) -> str:
    return (manager_of(facts) or APT).name


def build_steps(
    observation: Observation, policy: Policy, facts: HostFacts, target: Target, packages: Optional[Step],
    builds: Sequence[Step], brought: Sequence[Step] = ()
) -> List[Step]:
    """Each product's module for every kernel that has the driver's, where it has none of that driver."""
    coming: Mapping[str, Optional[str]] = packages.change["after"] if packages else {}
    exchanged, renewed = building.loses(coming), {step.subject: step.id for step in builds}
    found = []
    for peer in wanted_products(policy):
        for kernel in observation.kernels:
            if not _has_driver(kernel, target, exchanged) and kernel.release not in renewed:
                continue
            if not _lacks(observation, kernel, peer.module, exchanged, renewed) or not building.buildable(
                    kernel, coming):
                continue
            if _has_failed(observation, kernel.release, peer.module, target) and not building.essential(kernel, facts):
                continue
            found.append(Step(
                NAME, BUILD, "%s for %s" % (peer.module, kernel.release),
                "%s is built for this kernel and driver %s." % (peer.called, target.version),
                change={"before": {peer.module: None}, "after": {peer.module: "for driver %s" % target.version}},
                parameters={
                    "module": peer.module, "source": peer.dkms, "kernel": kernel.release, "driver": target.version,
                    "essential": building.essential(kernel, facts), "timeout": 1800,
                    "signed": asked_for(policy, facts), "certificate": observation.signing_key.certificate,
                    "exactly": observation.signing_key.given},
                depends_on=tuple(each for each in (
                    packages.id if packages else "", renewed.get(kernel.release, ""),
                    *(step.id for step in brought)) if each)))
    return found


def _has_driver(kernel: Kernel, target: Target, exchanged: bool) -> bool:
    return kernel.module == target.version and not exchanged


def _lacks(
    observation: Observation, kernel: Kernel, module: str, exchanged: bool, renewed: Mapping[str, str]
) -> bool:
    return exchanged or kernel.release in renewed or module not in observation.peers.built.get(kernel.release, ())


def _removal_steps(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> List[Step]:
    """What came for a product that is not wanted any more; in use, its module stays until the next boot."""
    found = [command_step(
        NAME, UNLOAD, name, ["modprobe", "-r", name.replace("_", "-")], "The policy does not want it any more.",
        change={"before": {name: "loaded"}, "after": {name: None}}, timeout=120)
        for name in _unwanted(observation, policy, facts, target) if observation.peers.loaded.get(name) == 0]
    if observation.peers.removable:
        gone = {name: observation.installed_by_us[name] for name in observation.peers.removable}
        found.append(packages_step(
            NAME, SUBJECT, gone, dict.fromkeys(gone), "They came for what the policy does not want any more.",
            Disruption.none, tuple(step.id for step in found), manager=_manager(facts), request=dict(gone), purge=True))
    return found


def _unwanted(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> Tuple[str, ...]:
    """Loaded ones that our file names and the policy does not; dependants first."""
    ours = modules_in(observation.files.get(PEERS_FILE) or "")
    wanted = wanted_modules(observation, policy, facts, target)
    return tuple(name for name in reversed(ours) if name not in wanted and name in observation.peers.loaded)


def _file_steps(
    observation: Observation, policy: Policy, facts: HostFacts, target: Target, requires: Tuple[str, ...]
) -> List[Step]:
    wanted = wanted_modules(observation, policy, facts, target)
    before = observation.files.get(PEERS_FILE)
    if not wanted:
        return [restore_step(NAME, PEERS_FILE, before, observation.originals[PEERS_FILE])] \
            if PEERS_FILE in observation.originals else []
    text = modules_text(wanted)
    return [] if before == text else [file_step(
        NAME, PEERS_FILE, before, text, "A boot loads these modules beside the driver's.", requires=requires)]


def notes(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> List[str]:
    told = ["%s is in use and stays loaded until the next boot." % name
            for name in _unwanted(observation, policy, facts, target) if observation.peers.loaded[name]]
    if policy.rdma != NO_RDMA and rdma_way(observation, policy, facts, target) == DMABUF:
        told.append("RDMA devices reach the GPUs' memory by DMA-BUF, with the open kernel module on kernel %s: there "
                    "is nothing to load for it." % facts.kernel)
    for peer in wanted_products(policy):
        told += ["%s does not build for kernel %s, which neither runs nor boots next." % (peer.module, kernel.release)
                 for kernel in observation.kernels if not building.essential(kernel, facts)
                 and _has_failed(observation, kernel.release, peer.module, target)
                 and peer.module not in observation.peers.built.get(kernel.release, ())]
    return told


# facts


def facts_after(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> HostFacts:
    wanted = wanted_modules(observation, policy, facts, target)
    if not wanted and PEERS_FILE not in observation.originals:
        return facts
    return facts.but(peer_modules=wanted or modules_in(observation.originals[PEERS_FILE] or ""))


def facts_without(observation: Observation, facts: HostFacts) -> HostFacts:
    """The facts once our file is taken back."""
    if PEERS_FILE not in observation.originals:
        return facts
    return facts.but(peer_modules=modules_in(observation.originals[PEERS_FILE] or ""))


def is_transaction(step: Step) -> bool:
    """Whether a package step is not the driver's own."""
    return step.subject == SUBJECT
