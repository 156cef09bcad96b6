# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What steps of the driver do to a host in memory, and what a repository offers it."""
from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Dict, Iterable, List, Mapping, Optional, Tuple

import world

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import OPEN, PROPRIETARY, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import (
    building,
    catalogue,
    kernel_hold,
    peers,
    planner,
    prebuilt,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.archive import STORE
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.backends.dnf import streams_wanted
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.boot_arguments import BootArguments
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.files import places_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.observation import (
    Observation,
    Offer,
    OfRpm,
    archives_at_hand,
    goes_down,
    header_packages,
    index_needed,
    requested,
    superfluous,
    way_back_needed,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.origin import origin_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.peer_builds import (
    Peers,
    packages_missing,
    wanted_products,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.peer_offer import beyond
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.policy import (
    DMABUF,
    NO_RDMA,
    Policy,
    policy_of,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.record import (
    Record,
    is_archived,
    of_dict,
    strangers,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.runfile import Installer
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.signing import (
    ENROLLED,
    NAME_OF_MADE,
    PENDING,
    UNKNOWN,
    SigningKey,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.staged_build import StagedBuild
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.tables.boot_tools import GRUB_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.tables.peers import PEERS
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.target import Target, anchors, chosen, target_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.boot import BootState, kind_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.driver_container import DriverContainer
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.peer_modules import (
    PEERMEM,
    PEERS_FILE,
    modules_in,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import keys
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.dnf import history as dnf_history
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.managers import DNF, ZYPPER, manager_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Simulation
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.zypper import history as zypper_history

VERSIONS = ("580.126.09", "580.178.04", "595.91.07", "610.57.04", "615.71.09")
# Made with gpg for these tests alone: EA72E43618AB9E74CBA1A6347817BDBC403BAB96
KEY = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEawI5RBYJKwYBBAHaRw8BAQdA4qz6EqKGuhKJzmVloZENAw6m0FazH8uov2bi
DnE1u7e0GHR3byA8dHdvQGdwdW9wcy5pbnZhbGlkPoiQBBMWCAA4FiEE6nLkNhir
nnTLoaY0eBe9vEA7q5YFAmsCOUQCGwMFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AA
CgkQeBe9vEA7q5Yi0QD/ehFl667aQn0/7pCMuFQvWaU+klPLIwJdrDuyz2YXRh8B
AO91/I6lpzxPiUILdccAqvdMYMhR8II/NraZOrpmpJEJ
=g0kc
-----END PGP PUBLIC KEY BLOCK-----
"""


def policy(**changes: Any) -> Policy:
    given: Dict[str, Any] = {
        "state": "present", "source": "nvidia_repository", "version": "580.178.04", "kernel_module": "auto",
        "flavour": "headless", "repository_url": "http://mirror/debian12/x86_64", "repository_key": KEY,
        "repository_key_fingerprint": "", "fabric_manager": "auto", "extra_packages": [], "kernel_headers": True,
        "hold": True, "secure_boot": "require_signed",
    }
    given.update(changes)
    return policy_of(given)


LIBRARIES = ("libnvidia-ml1", "nvidia-driver-cuda-libs", "libnvidia-ml")
HISTORIES = {DNF: dnf_history, ZYPPER: zypper_history}
NO_MODULE: Dict[str, Any] = {"module": "", "license": "", "signer": "", "key": "", "trusted": True}
# What NVIDIA's repository has of GPUDirect Storage and GDRCopy
PEER_VERSIONS = {"nvidia-fs-dkms": "2.29.4-1", "gdrdrv-dkms": "2.6-1", "libgdrapi": "2.6-1"}
# What a distribution has of what builds a module, and what comes along
BUILDERS = {DNF: {"gcc": "11.5.0-5.el9", "make": "1:4.3-8.el9", "dkms": "3.2.2-1.el9"},
            ZYPPER: {"gcc": "7-3.9.1", "make": "4.2.1-7.3.2", "dkms": "3.0.13-bp157.1.1"}}
ALONG = {DNF: {"glibc-devel": "2.34-168.el9"}, ZYPPER: {"gcc7": "7.5.0-1.2"}}
# As modinfo tells it
LICENSES = {True: "Dual MIT/GPL", False: "NVIDIA"}


@dataclass
class World(world.World):
    """What dpkg, /etc and /lib/modules hold, and what the repository offers.

    record:        the driver before the last change.
    kept:          package files that are kept for the way back to it.
    offered:       whether apt is told of them.
    script_builds: whether the script of the driver's package builds its module, for the running and the newest kernel.
    more:          further fields of the observation.
    signing_key:   the key that DKMS signs with; the firmware keeps what it has of it.
    modules:       {package of modules that the distribution has signed: {version: what it depends on}}.
    trusted:       {name of a key in rpm's database: fingerprints}; ours are those that our_keys names.
    staged:        modules that were built ahead.
    tools:         whether DKMS and a compiler are there.
    peers_offered: {package of GPUDirect Storage or GDRCopy in the repository: version}.
    peers_built:   {kernel: modules beside the driver's that are built for it and its driver}.
    peers_loaded:  {loaded one of them: how often it is in use}.
    peers_failed:  {kernel: {one of them: the driver that it did not build with}}.
    registers:     kernels whose RDMA stack nvidia-peermem can register with.
    not_theirs:    those of them that it was not built for: nvidia-peermem is built, and does not load.
    boot_state:    the boot loader, and what the running kernel was started with.
    theirs:        what others have kernels started with; None without a GRUB.
    configured:    what GRUB starts kernels with, since update-grub ran.
    noted:         what of it is ours.
    migrates:      whether a driver of others was to be replaced.
    locked:        packages that somebody keeps as they are, by locks of zypper.
    unsupported:   the file by which modprobe refuses modules that SUSE does not support.
    signers:       names of the keys whose signatures the kernel takes; None where nothing tells.
    installer:     what there is of NVIDIA's installer beside the driver that it brought.
    tools_offered: whether the host's sources have DKMS.
    dkms:          its version there, with apt.
    """

    capability = CAPABILITY
    options: ClassVar[Mapping[str, str]] = {
        "version": "580.178.04", "repository_url": "http://mirror/debian12/x86_64", "repository_key": KEY}

    installed: Dict[str, str] = field(default_factory=dict)
    kernels: Tuple[Kernel, ...] = (Kernel("6.1.0-50-amd64"),)
    versions: Tuple[str, ...] = VERSIONS
    headers_offered: bool = True
    installed_by_us: Dict[str, str] = field(default_factory=dict)
    archives: Tuple[str, ...] = ()
    record: Optional[Record] = None
    kept: Tuple[str, ...] = ()
    offered: bool = False
    script_builds: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)
    signing_key: SigningKey = SigningKey()
    modules: Dict[str, Dict[str, str]] = field(default_factory=dict)
    trusted: Dict[str, Tuple[str, ...]] = field(default_factory=dict)
    our_keys: Tuple[str, ...] = ()
    staged: Tuple[StagedBuild, ...] = ()
    tools: bool = False
    peers_offered: Dict[str, str] = field(default_factory=lambda: dict(PEER_VERSIONS))
    peers_built: Dict[str, Tuple[str, ...]] = field(default_factory=dict)
    peers_loaded: Dict[str, int] = field(default_factory=dict)
    peers_failed: Dict[str, Dict[str, str]] = field(default_factory=dict)
    registers: Tuple[str, ...] = ()
    not_theirs: Tuple[str, ...] = ()
    boot_state: BootState = BootState()
    theirs: Optional[Tuple[str, ...]] = None
    configured: Tuple[str, ...] = ()
    noted: Tuple[str, ...] = ()
    migrates: bool = False
    locked: Tuple[str, ...] = ()
    unsupported: str = ""
    signers: Optional[Tuple[str, ...]] = None
    installer: Installer = Installer()
    tools_offered: bool = True
    dkms: str = "3.0.10-8"

    def observe(self, wanted: Policy, there: HostFacts) -> Observation:
        seen = Observation(
            installed=dict(self.installed), kernels=self.kernels, installed_by_us=dict(self.installed_by_us),
            files=self.state(places_of(there).all), originals=dict(self.originals),
            removable=tuple(self.installed_by_us) if wanted.state == "absent" else (),
            record=self.record, kept=self.kept, offered=self.offered, signing_key=self._signing_key(wanted),
            of_rpm=OfRpm(dict(self.trusted), self.our_keys, unsupported=self.unsupported, signers=self.signers),
            staged=self.staged,
            peers=self._peers(wanted), boot=self.boot_state, arguments=self._arguments(wanted),
            installer=replace(self.installer, user_space=there.driver_userspace))
        seen = replace(seen, held={name: self.installed[name] for name in self.locked})
        seen = replace(seen, **self.more)
        offer_of_rpm = {DNF: self._offer_of_dnf, ZYPPER: self._offer_of_zypper}.get(manager_of(there))
        if offer_of_rpm is None:
            seen = replace(seen, kernel_hold=kernel_hold.wanted(wanted, self.installed, seen.files, there))
        if wanted.state == "rolled_back":
            needed = way_back_needed(seen, wanted) and not (seen.record and seen.record.runfile)
            seen = replace(seen, archives=self.archives) if needed else seen
            return replace(seen, offer=self._offer_back(seen)) if needed else seen
        if wanted.state != "absent" and index_needed(seen, wanted, there):
            returnable = {**self.installed, **(self.record.packages if self.record else {})}
            if offer_of_rpm is not None:
                return replace(seen, archives=self.archives, offer=replace(
                    offer_of_rpm(seen, wanted, there), returnable=self._returnable(returnable)))
            offer = replace(self._offer(seen, wanted, there), returnable=self._returnable(returnable))
            lacking = () if self.tools else ("dkms", "make", "compiler")
            return replace(seen, offer=offer, archives=self.archives, lacking_tools=lacking)
        return seen

    def _arguments(self, wanted: Policy) -> BootArguments:
        if not (wanted.kernel_arguments or self.noted or GRUB_FILE in self.files) or self.theirs is None:
            return BootArguments()
        return BootArguments("/boot/grub/grub.cfg", {kernel.release: self.configured for kernel in self.kernels},
                             self.noted, True)

    def _peers(self, wanted: Policy) -> Peers:
        if wanted.state == "absent":
            return Peers()
        products, asks = wanted_products(wanted), wanted.rdma not in (NO_RDMA, DMABUF)
        names = [peer.module for peer in products] + [PEERMEM] * asks
        return Peers(
            built={kernel.release: tuple(name for name in self.peers_built.get(kernel.release, ()) if name in names)
                   for kernel in self.kernels},
            failed=self.peers_failed, registers=self.registers if asks else (), loaded=dict(self.peers_loaded),
            removable=tuple(sorted(name for peer in PEERS if peer not in products for names in peer.packages.values()
                                   for name in names if name in self.installed_by_us)))

    def _returnable(self, packages: Mapping[str, str]) -> Tuple[str, ...]:
        return tuple(sorted("%s=%s" % (name, version) for name, version in packages.items()
                            if catalogue.upstream(version) in self.versions))

    def _offer_back(self, seen: Observation) -> Offer:
        assert seen.record is not None
        record, at_hand = seen.record, archives_at_hand(seen)
        needed = record.changed(self.installed)
        returnable = (*self._returnable(record.packages), *(
            "%s=%s" % item for item in record.packages.items() if is_archived(*item, at_hand)))
        if not all("%s=%s" % item in returnable for item in needed.items()):
            return Offer(returnable=returnable)
        removes = tuple(name for name in self.installed if building.loses([name]) and name not in record.packages)
        leaves = catalogue.excluded(record.packages, self.installed)
        removes = tuple(dict.fromkeys((*removes, *leaves)))
        before = {name: self.installed[name] for name in (*needed, *removes) if name in self.installed}
        gone = {name: version for name, version in superfluous(seen, record).items() if name not in removes}
        files = {name: "%s/%s" % (STORE, DNF.archive_begins(name, version) + "x86_64.rpm")
                 for name, version in needed.items() if is_archived(name, version, at_hand)}
        is_rpm = manager_of(self.facts) in HISTORIES
        return Offer(returnable=returnable, superfluous=gone, transaction=Simulation(
            needed, removes, before=before, request=record.packages, leaves=leaves,
            allow_downgrade=goes_down(self.installed, needed)) if needed else None, at_hand=files if is_rpm else {})

    def _offer(self, seen: Observation, wanted: Policy, there: HostFacts) -> Offer:
        offer = self._driver_offer(seen, wanted, there)
        missing = packages_missing(wanted, there, self.installed)
        versions = {name: [self.peers_offered[name]] if name in self.peers_offered else [] for name in missing}
        if not versions or not all(versions.values()):
            return replace(offer, peer_versions=versions)
        request = {name: each[0] for name, each in versions.items()}
        driver = offer.transaction or Simulation({}, ())
        dkms = {} if "dkms" in self.installed else {"dkms": self.dkms}
        both = replace(driver, installs={**driver.installs, **request, **dkms})
        return replace(offer, peer_versions=versions, peers=replace(beyond(both, driver, request), before={}, named=()))

    def _driver_offer(self, seen: Observation, wanted: Policy, there: HostFacts) -> Offer:
        packages = {version if there.vgpu_manager else "%s-1" % version: version for version in self.versions}
        versions: Dict[str, List[str]] = {name: sorted(packages, reverse=True) for name in anchors(wanted, there)}
        modules = self._modules_offered(seen, wanted, there, versions)
        target = target_of(wanted, there, seen.installed, versions, replace(seen.prebuilt, offered=modules))
        if not isinstance(target, Target):
            return Offer(versions=versions, key=origin_of(wanted, there).key_text, modules=modules)
        for name in target.packages.required + target.packages.optional:
            versions[name] = sorted(packages, reverse=True)
        if target.of_installer:
            versions["dkms"] = [self.dkms] if self.tools_offered else []
        headers = () if target.is_precompiled and not wanted_products(wanted) else tuple(
            header_packages(seen, wanted, there))
        versions.update(dict.fromkeys(headers, ["6.1.176-1"] if self.headers_offered else []))
        key = origin_of(wanted, there).key_text
        request = requested(target, seen, versions, headers)
        if not request:
            return Offer(versions=versions, key=key, modules=modules)
        comes: Tuple[str, ...] = ()
        if any(name in request for name in target.packages.required):
            comes = () if target.is_precompiled else ("dkms",)
            if not there.vgpu_manager and not target.of_installer:
                request["libnvidia-ml1"] = "%s-1" % target.version
        brought = {**dict.fromkeys(comes, self.dkms), **self._of_archive(target)}
        installs = {**request, **brought}
        installs = {name: version for name, version in installs.items() if self.installed.get(name) != version}
        removes = tuple(name for name in self.installed if building.loses([name]) and name not in installs
                        and "-no-dkms-" not in name) if building.loses(installs) else ()
        removes = tuple(sorted({*removes, *target.leaves}))
        before = {name: self.installed[name] for name in (*installs, *removes) if name in self.installed}
        of_driver = "libnvidia-ml1" in request
        return Offer(versions=versions, key=key, modules=modules, transaction=Simulation(
            installs, removes, before=before, request=request, allow_downgrade=goes_down(self.installed, installs),
            named=("libnvidia-ml1",) if of_driver else (), leaves=target.leaves))

    def _modules_offered(
        self, seen: Observation, wanted: Policy, there: HostFacts, versions: Mapping[str, List[str]]
    ) -> Optional[Dict[str, Dict[str, str]]]:
        meant = chosen(wanted, there, seen.installed, versions)
        if isinstance(meant, Refusal) or catalogue.PRECOMPILED not in catalogue.ways(meant):
            return None
        asked = prebuilt.names(meant, self.kernels, self.installed)
        if manager_of(there) is ZYPPER:
            return {name: known for name, known in self.modules.items() if name.startswith(asked)}
        if manager_of(there) is DNF:
            return dict(self.modules)
        return {name: self.modules.get(name, {}) for name in asked}

    @staticmethod
    def _of_archive(target: Target) -> Dict[str, str]:
        """What the package that Ubuntu's archive has of a driver with DKMS depends on."""
        beginning, dash, series = target.packages.anchor.partition("-headless-")
        if not dash or target.is_precompiled:
            return {}
        return {name % series: "%s-1" % target.version for name in ("nvidia-dkms-%s", "nvidia-headless-no-dkms-%s")}

    def _offer_of_dnf(self, seen: Observation, wanted: Policy, there: HostFacts) -> Offer:
        """rpm packages of NVIDIA and of Red Hat have an epoch, those of the fabric have none."""
        key = origin_of(wanted, there).key_text
        offered = sorted(self.versions, reverse=True)
        versions = {name: ["3:%s-1.el9" % each for each in offered] for name in anchors(wanted, there)}
        modules = self._modules_offered(seen, wanted, there, versions)
        target = target_of(wanted, there, seen.installed, versions, replace(seen.prebuilt, offered=modules))
        if not isinstance(target, Target):
            return Offer(versions=versions, key=key, modules=modules)
        if target.of_installer:
            return self._offer_of_builders(seen, target, {
                name: [version] if self.headers_offered else []
                for name, version in header_packages(seen, wanted, there).items()})
        for name in target.packages.required + target.packages.optional:
            its = "" if name in ("nvidia-fabricmanager", "nvidia-imex", "libnvidia-nscq") else "3:"
            versions[name] = ["%s%s-1.el9" % (its, each) for each in offered]
        headers = {} if target.is_precompiled else header_packages(seen, wanted, there)
        versions.update({name: [version] if self.headers_offered else [] for name, version in headers.items()})
        streams = streams_wanted(wanted, there, target)
        request = requested(target, seen, versions, tuple(headers))
        if not request:
            return Offer(versions=versions, key=key, streams=streams, modules=modules)
        installs = dict(request)
        if target.packages.anchor in request:
            installs.update({"nvidia-driver-cuda-libs": request[target.packages.anchor],
                             **({} if target.is_precompiled else {"dkms": "3.2.2-1.el9"})})
        installs = {name: version for name, version in installs.items() if self.installed.get(name) != version}
        removes = tuple(name for name in self.installed if name not in installs and self._excludes(name, installs))
        before = {name: self.installed[name] for name in (*installs, *removes) if name in self.installed}
        return Offer(versions=versions, key=key, streams=streams, modules=modules, superfluous={
            name: self.installed[name] for name in target.leaves if name not in removes}, transaction=Simulation(
                installs, removes, before=before, request=request,
                allow_downgrade=goes_down(self.installed, installs, DNF.compare)) if installs else None)

    @staticmethod
    def _excludes(name: str, coming: Iterable[str]) -> bool:
        """Whether NVIDIA's packages that come say that they exclude one: DKMS's each other, and those that come built
        the proprietary one."""
        closed, built = "kmod-nvidia-latest-dkms", any(map(catalogue.EL_MODULES.match, coming))
        return (building.loses([name]) and building.loses(coming)) or (name == closed and built) or (
            closed in coming and bool(catalogue.EL_MODULES.match(name)))

    def _offer_of_zypper(self, seen: Observation, wanted: Policy, there: HostFacts) -> Offer:
        """What NVIDIA has for SUSE: names of a generation, and headers with the number of their build."""
        key = origin_of(wanted, there).key_text
        versions = {name: self._of_generation(name) for name in anchors(wanted, there)}
        modules = self._modules_offered(seen, wanted, there, versions)
        target = target_of(wanted, there, seen.installed, versions, replace(seen.prebuilt, offered=modules))
        if not isinstance(target, Target):
            return Offer(versions=versions, key=key, modules=modules)
        for name in (*target.packages.names, *catalogue.family(self.installed)):
            versions[name] = self._of_generation(name)
        headers = {"%s.1" % name: ["%s.1" % version] for name, version in header_packages(seen, wanted, there).items()
                   if self.headers_offered and not target.is_precompiled}
        if target.of_installer:
            return self._offer_of_builders(seen, target, headers)
        versions.update(headers)
        request = requested(target, seen, versions, tuple(headers))
        if not request:
            return Offer(versions=versions, key=key, modules=modules)
        installs = dict(request)
        if target.packages.anchor in request:
            whole = request[target.packages.anchor]
            end = catalogue.generation_of(target.packages.anchor)
            installs.update({"nvidia-compute-" + end: whole, "libnvidia-ml": whole,
                             **({} if target.is_precompiled else {"dkms": "3.3.0-1"})})
        installs.update({name.replace("-default", ""): each[0] for name, each in headers.items()})
        installs = {name: version for name, version in installs.items() if self.installed.get(name) != version}
        held = tuple(name for name in self.locked if name in installs or name in target.leaves)
        before = {name: self.installed[name] for name in (*installs, *target.leaves) if name in self.installed}
        return Offer(versions=versions, key=key, modules=modules, transaction=Simulation(
            {} if held else installs, () if held else target.leaves, before={} if held else before, request=request,
            allow_downgrade=goes_down(self.installed, installs, ZYPPER.compare), leaves=target.leaves, held=held,
            problem="nothing provides %s" % held[0] if held else ""))

    def _offer_of_builders(self, seen: Observation, target: Target, headers: Dict[str, List[str]]) -> Offer:
        """What builds the module of NVIDIA's installer, from the repositories of a host with rpm."""
        manager = manager_of(self.facts)
        assert manager is not None
        versions = {**{name: [BUILDERS[manager][name]] for name in target.packages.floating
                       if name in BUILDERS[manager]}, **headers}
        versions["dkms"] = versions["dkms"] if self.tools_offered else []
        request = requested(target, seen, versions, tuple(headers))
        if not request or not all(versions[name] for name in target.packages.required):
            return Offer(versions=versions)
        installs = {**request, **(ALONG[manager] if "gcc" in request else {})}
        return Offer(versions=versions, transaction=Simulation(installs, (), before={}, request=request))

    def _of_generation(self, name: str) -> List[str]:
        """Versions of a package that the repository has, newest first."""
        epoch = "" if name in ("nvidia-fabricmanager", "nvidia-imex", "libnvidia-nscq") else "3:"
        is_new = {"G06": False, "G07": True}.get(catalogue.generation_of(name))
        return ["%s%s-1" % (epoch, each) for each in sorted(self.versions, reverse=True)
                if is_new in (None, int(each.split(".")[0]) >= 590)]

    def rpm_import_key(self, step: Step) -> None:
        fingerprints = tuple(step.change["after"].split(", "))
        assert fingerprints == keys.read((self.files[step.subject]).encode()).fingerprints
        name = "gpg-pubkey-" + fingerprints[0][-8:].lower()
        self.trusted[name] = fingerprints
        self.our_keys += (name,)

    def rpm_forget_key(self, step: Step) -> None:
        del self.trusted[step.subject]
        self.our_keys = tuple(name for name in self.our_keys if name != step.subject)

    def _signing_key(self, wanted: Policy) -> SigningKey:
        if not wanted.signing_key:
            return self.signing_key
        return replace(self.signing_key, key=wanted.signing_key, certificate=wanted.signing_certificate, given=True)

    def suppose(self, policy: Policy) -> None:
        self.migrates = self.migrates or policy.migrate

    @property
    def of_installer(self) -> bool:
        return bool(self.more.get("runfile"))

    @property
    def is_touched(self) -> bool:
        return super().is_touched or bool(
            self.installed_by_us or self.staged or self.installer.cached or self.installer.ours
        ) or self.record is not None

    def of_others(self) -> Dict[str, Any]:
        # Who has a driver of others replaced does not get it back by an uninstallation
        packages = {name: version for name, version in self.installed.items()
                    if not (self.migrates and catalogue.FAMILY.match(name))}
        return {**super().of_others(), "packages": packages, "keys": dict(self.trusted),
                "arguments": self.configured}

    def _repaired(self, step: Step) -> None:
        """dpkg has finished what it began."""
        self.more = {name: value for name, value in self.more.items() if name not in ("broken", "ours_unfinished")}

    dpkg_configure = dpkg_finish = _repaired

    def repository_forget(self, step: Step) -> None:
        self.more = {name: value for name, value in self.more.items() if name != "lists"}

    def packages_download(self, step: Step) -> None:
        self._prune(step.change["after"], self.installed, self.record.packages if self.record else {})
        self.archives += tuple(self._archive(*package) for package in step.change["after"].items())

        self._keep(step.change["after"])

    def _archive(self, name: str, version: str) -> str:
        if manager_of(self.facts) in HISTORIES:
            return DNF.archive_begins(name, version) + "x86_64.rpm"
        return "%s_%s_amd64.deb" % (name, version)

    def _keep(self, packages: Mapping[str, str]) -> None:
        self.kept = tuple(sorted({*self.kept, *(
            archive for archive in self.archives
            for name, version in packages.items()
            if catalogue.FAMILY.match(name) and is_archived(name, version, [archive]))}))

    def _prune(self, *sets: Mapping[str, str]) -> None:
        gone = set(self.kept)
        for packages in sets:
            gone.intersection_update(strangers(gone, packages))
        self.kept = tuple(archive for archive in self.kept if archive not in gone)

    def module_stage(self, step: Step) -> None:
        kernel = next(each for each in self.kernels if each.release == step.subject)
        assert kernel.headers and self.tools, "nothing is built without headers and a compiler"
        assert all(is_archived(name, version, (*self.archives, *self.kept))
                   for name, version in step.parameters["packages"].items()), "its source has not been fetched"
        self._discard(step.subject)
        self.staged += (StagedBuild(step.subject, step.change["after"]["nvidia"], step.parameters["packages"], True),)

    def module_withdraw(self, step: Step) -> None:
        assert any(build.kernel == step.subject for build in self.staged)
        self._discard(step.subject)

    def _discard(self, release: str) -> None:
        self.staged = tuple(build for build in self.staged if build.kernel != release)

    def driver_record(self, step: Step) -> None:
        self.record = of_dict(step.parameters["record"])
        assert self.record is not None and self.record.packages == {
            name: version for name, version in self.installed.items()
            if not self.record.runfile and (catalogue.is_of_driver(name, version) or (
                catalogue.FAMILY.match(name) and name in self.installed_by_us))}
        places = places_of(self.facts)
        assert self.record.files == places.record(self.state(places.recorded)), \
            "it is written after what it is the record of"
        self._keep(self.record.packages)
        self._prune(self.record.packages, step.parameters["coming"])

    def driver_forget(self, step: Step) -> None:
        self.record = None
        stays = strangers(self.kept, step.parameters.get("coming", {}))
        self.kept = tuple(file for file in self.kept if file not in stays)

    def archive_offer(self, step: Step) -> None:
        self.offered = True
        self._keep(step.change["after"])

    def archive_check(self, step: Step) -> None:
        self._keep(step.change["after"])
        assert all(is_archived(name, version, self.kept) for name, version in step.change["after"].items())

    def archive_withdraw(self, step: Step) -> None:
        assert self.offered
        self.offered = False

    def packages_install(self, step: Step) -> Disruption:
        there = dict(self.installed)
        for name, version in step.change["after"].items():
            assert step.change["before"][name] == self.installed.get(name), "%s says another version" % name
            if version is None:
                del self.installed[name]
                self.installed_by_us.pop(name, None)
                continue
            if name not in there or name in self.installed_by_us:
                self.installed_by_us[name] = version
            self.installed[name] = version
        if peers.is_transaction(step):
            for kernel in (self.facts.kernel, self.kernels[-1].release) if self.script_builds else ():
                self._build_peers(kernel)
            return Disruption.none
        self.kernels = tuple(
            replace(kernel, headers=kernel.headers or catalogue.brings_headers(self.installed, kernel.release))
            for kernel in self.kernels)
        if any(version is None and (building.loses([name]) or catalogue.generation_of(name))
               for name, version in step.change["after"].items()):
            self.kernels = tuple(replace(kernel, **NO_MODULE) for kernel in self.kernels)
        self._take_modules()
        anchor = [name for name in step.change["after"] if name in self.installed and name != "dkms"
                  and not name.startswith(("linux-", "nvidia-headless-no-dkms-"))
                  and (name.endswith(("dkms", "dkms-open", "-open")) or catalogue.is_guest(name)
                       or (catalogue.generation_of(name) and building.loses([name])))]
        if anchor:
            self.kernels = tuple(replace(kernel, **NO_MODULE) for kernel in self.kernels)
            self.peers_built = {}
        self.tools = self.tools or "dkms" in self.installed
        if anchor and self.script_builds:
            self._build((self.facts.kernel, self.kernels[-1].release), catalogue.upstream(self.installed[anchor[0]]))
        self._tell()
        exchanged = self.facts.driver_loaded and (
            self.facts.driver_userspace != self.facts.driver_loaded
            or (self.facts.module_loaded or self._module()) != self._module())
        return Disruption.driver_reload if exchanged else Disruption.none

    def _take_modules(self) -> None:
        """Those that came built lie where DKMS's are looked for first; of several drivers the last one's are there."""
        if prebuilt.kind_there(self.installed) == catalogue.DKMS:
            return
        for name in self.installed:
            for kernel in self.kernels:
                if name in self.modules and catalogue.serves(name, kernel.release):
                    version = self.installed[name]
                    made = replace(kernel, module=prebuilt.driver_of(version, self.modules[name][version]),
                                   license=LICENSES["-open-" in name], signer="the distribution", key="ca",
                                   trusted=True)
                    self.kernels = tuple(made if each is kernel else each for each in self.kernels)

    def module_verify(self, step: Step) -> None:
        """Links that are lacking are made."""
        self._take_modules()
        self._tell()
        (kernel,) = [kernel for kernel in self.kernels if kernel.release == step.subject]
        assert kernel.module == step.change["after"]["nvidia"] and kernel.trusted, kernel
        assert kind_of(kernel.license) == step.parameters["module"]

    def packages_remove(self, step: Step) -> Disruption:
        for name in step.change["after"]:
            assert step.change["before"][name] == self.installed.pop(name)
            assert self.installed_by_us.pop(name, "") or catalogue.EL_MODULES.match(name) or building.loses([name])
        if peers.is_transaction(step):
            gone = {peer.module for peer in PEERS for names in peer.packages.values()
                    if names[0] in step.change["after"]}
            self.peers_built = {kernel: tuple(name for name in names if name not in gone)
                                for kernel, names in self.peers_built.items()}
            return Disruption.none
        if "nvidia-driver-cuda" in self.installed:
            if prebuilt.kind_there(self.installed) != catalogue.DKMS:
                self.kernels = tuple(replace(kernel, **NO_MODULE) for kernel in self.kernels)
            self._take_modules()
            self._tell()
            return Disruption.none
        self.peers_built = {}
        self.kernels = tuple(replace(kernel, **NO_MODULE, headers=False) for kernel in self.kernels)
        self._take_modules()
        self._tell()
        return Disruption.driver_reload if self.facts.driver_loaded else Disruption.none

    def runfile_remove(self, step: Step) -> Disruption:
        assert self.more["leftovers"] == tuple(step.parameters["files"])
        self.more = {name: value for name, value in self.more.items() if name not in ("leftovers", "runfile")}
        self.installer = replace(self.installer, is_half=False, sources={}, ours="", file={})
        self.kernels = tuple(replace(kernel, **NO_MODULE) for kernel in self.kernels)
        self._tell()
        return Disruption.driver_reload if self.facts.driver_loaded else Disruption.none

    def runfile_fetch(self, step: Step) -> None:
        sha256 = step.change["after"]["sha256"]
        assert not self.installer.has(step.parameters["version"], sha256)
        self.installer = replace(self.installer, cached={**self.installer.cached, sha256: step.parameters["version"]})

    def runfile_install(self, step: Step) -> Disruption:
        assert not self.more.get("runfile") and not self.installer.is_half, "another one is there"
        itself = catalogue.without_companions(self.installed)
        assert not any(catalogue.is_of_driver(*package) for package in itself.items()), "packages are there"
        version, sha256 = step.change["after"]["driver"], step.parameters["sha256"]
        assert self.installer.cached[sha256] == version
        self.more = {**self.more, "leftovers": ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-smi"), "runfile": version}
        stays = {sha256, *((self.record.runfile.get("sha256"),) if self.record else ())}
        self.installer = Installer(
            {name: each for name, each in self.installer.cached.items() if name in stays},
            sources={version: step.parameters["module"]}, ours=version,
            file={"sha256": sha256, "flavour": step.parameters["flavour"]})
        self._tell()
        return Disruption.driver_reload if self.facts.driver_loaded else Disruption.none

    def runfile_forget(self, step: Step) -> None:
        assert step.change["before"] == self.installer.cached and not step.parameters["sources"]
        self.installer = replace(self.installer, cached={})

    def dkms_build(self, step: Step) -> None:
        version = step.change["after"]["nvidia"]
        self._build((step.subject,), version)
        if step.parameters.get("peer_memory") and step.subject in self.not_theirs:
            assert not step.parameters["essential"]
            self.peers_failed[step.subject] = {PEERMEM: version}
        self._tell()

    def dkms_forget_original(self, step: Step) -> None:
        """DKMS puts nothing back here."""

    def _build(self, releases: Tuple[str, ...], version: str) -> None:
        """What was built ahead is used up with it."""
        self.staged = tuple(build for build in self.staged
                            if not (build.kernel in releases and build.version == version))
        self.kernels = tuple(
            replace(kernel, module=version, license=LICENSES[self._module() == OPEN], key=self.signing_key.serial,
                    signer=self.signing_key.name, trusted=self._takes_our_key())
            if kernel.release in releases and kernel.headers else kernel for kernel in self.kernels)

        for release in releases:
            if self._has_module(release):
                self.peers_built[release] = (PEERMEM,) * (release in self.registers and release not in self.not_theirs)

    def _has_module(self, release: str) -> bool:
        """The modules of the kernel that runs may be gone, and are no kernel that can be booted."""
        return any(kernel.release == release and kernel.module for kernel in self.kernels)

    def _kernel(self, release: str) -> Kernel:
        return next(kernel for kernel in self.kernels if kernel.release == release)

    def _build_peers(self, release: str, *modules: str) -> None:
        """Those named, or all whose source is there, against the driver's module that is there."""
        if not self._has_module(release):
            return
        sources = [peer.module for peer in PEERS for names in peer.packages.values() if names[0] in self.installed]
        for name in modules or sources:
            assert name in sources, "dkms knows no %s" % name
            self.peers_built[release] = tuple(sorted({*self.peers_built.get(release, ()), name}))

    def peer_build(self, step: Step) -> None:
        assert self._kernel(step.parameters["kernel"]).module == step.parameters["driver"], "no driver to build it for"
        self._build_peers(step.parameters["kernel"], step.parameters["module"])

    def module_unload(self, step: Step) -> None:
        assert self.peers_loaded.pop(step.subject) == 0, "modprobe: %s is in use" % step.subject

    def file_write(self, step: Step) -> None:
        super().file_write(step)
        self._tell_peers()

    def file_restore(self, step: Step) -> None:
        super().file_restore(step)
        self._tell_peers()

    def _tell_peers(self) -> None:
        self.facts = self.facts.but(peer_modules=modules_in(self.files.get(PEERS_FILE, "")))

    def boot(self) -> None:
        super().boot()
        self.peers_loaded = {}
        self.boot_state = replace(self.boot_state, command_line=" ".join(self.configured))

    def boot_note(self, step: Step) -> None:
        self.noted = tuple(sorted({*self.noted, *step.change["after"]}))

    def boot_configure(self, step: Step) -> None:
        """update-grub reads what all have written."""
        self.update_grub()
        self.noted = tuple(name for name, value in step.change["after"].items() if value)

    def update_grub(self) -> None:
        ours = re.findall(r"\$GRUB_CMDLINE_LINUX (.*)\"", self.files.get(GRUB_FILE, ""))
        self.configured = (*(self.theirs or ()), *(each for text in ours for each in text.split()))

    def say_grub(self, *arguments: str) -> None:
        """GRUB is the boot loader, and others have it start kernels with these."""
        self.theirs = self.configured = arguments
        self.boot_state = BootState(loader="grub", command_line=" ".join(arguments))

    def _takes_our_key(self) -> bool:
        return not self.facts.secure_boot or self.signing_key.state == ENROLLED

    def signing_key_make(self, step: Step) -> None:
        assert not self.signing_key.serial, "there is a key already"
        self.signing_key = replace(self.signing_key, name=NAME_OF_MADE, serial="5e71a1", sha1="ab" * 20)

    def signing_key_import(self, step: Step) -> None:
        assert self.signing_key.serial, "there is nothing to import"
        self.signing_key = replace(self.signing_key, state=PENDING)
        self._tell()

    def _module(self) -> str:
        """Which module the installed packages bring, or the installer has."""
        if self.more.get("runfile") and not any(
                catalogue.is_of_driver(*package) for package in catalogue.without_companions(self.installed).items()):
            return self.installer.sources.get(self.more["runfile"]) or OPEN
        return OPEN if any("open" in name for name in self.installed if catalogue.FAMILY.match(name)) else PROPRIETARY

    def _tell(self) -> None:
        """The facts, as they are read from the files of packages and modules."""
        modules = {kernel.release: kernel for kernel in self.kernels if kernel.module}
        runs, boots = (modules.get(release, Kernel("")) for release in (self.facts.kernel, self.facts.boot_kernel))
        self.facts = self.facts.but(
            driver_installed=runs.module, driver_boots=boots.module,
            driver_userspace=next((catalogue.upstream(version) for name, version in self.installed.items()
                                   if name in LIBRARIES or catalogue.is_guest(name)), self.more.get("runfile", "")),
            module_installed=kind_of((runs if runs.module else boots).license),
            key_pending=self.signing_key.called if self.signing_key.state == PENDING
            and self.signing_key.serial == (runs if runs.module else boots).key else "")

    # what scenarios say

    def say_kernel(self, release: str, *states: str) -> None:
        """A kernel that can be booted, with headers or without; the first one takes the place of those before it."""
        added = Kernel(release, headers="headers" in states)
        others = () if self.kernels == World().kernels else self.kernels
        self.kernels = tuple(sorted((*others, added), key=lambda kernel: kernel.release))
        self._take_modules()

    def say_package(self, name: str, version: str) -> None:
        """Somebody installs it."""
        self.installed[name] = version

    def say_erased(self) -> None:
        """Somebody removes the packages of the driver."""
        self.installed = {name: version for name, version in self.installed.items()
                          if not catalogue.is_of_driver(name, version)}
        self.kernels = tuple(replace(kernel, **NO_MODULE) for kernel in self.kernels)
        self._tell()

    def say_runfile(self, version: str, *how: str) -> None:
        """Somebody installs it by NVIDIA's installer, and loads it; 'lost' where nothing could remove it."""
        self.more = {**self.more, "leftovers": ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-smi"),
                     "runfile": "" if "lost" in how else version}
        self.installer = replace(self.installer, sources={version: ""}, ours="", file={})
        self.kernels = tuple(replace(kernel, module=version, license=LICENSES[True]) for kernel in self.kernels)
        self.facts = self.facts.but(
            driver_installed=version, driver_boots=version, driver_userspace=version, driver_loaded=version,
            module_installed=OPEN, module_loaded=OPEN)

    def say_container(self, version: str, *states: str) -> None:
        """A driver container has loaded this driver; 'gone': its pod was killed, and its file system stays."""
        self.more = {**self.more, "container": DriverContainer(
            pods=() if states else ("gpu-operator/nvidia-driver-daemonset-7xk2p",), mounted=True, firmware=True)}
        self.facts = self.facts.but(driver_loaded=version, module_loaded=OPEN)

    def say_half(self, version: str) -> None:
        """Our run of NVIDIA's installer was stopped in the middle."""
        self.more = {**self.more, "leftovers": ("/usr/bin/nvidia-smi",), "runfile": version}
        self.installer = replace(self.installer, is_half=True)

    def say_elsewhere(self) -> None:
        """The file that the policy names is not on the host."""
        self.installer = replace(self.installer, is_there=False)

    def say_untarred(self) -> None:
        """The host has no tar."""
        self.installer = replace(self.installer, unpacks=False)

    def say_uncached(self) -> None:
        """Somebody removes what was fetched of it."""
        self.installer = replace(self.installer, cached={})

    def say_modules(self, end: str, version: str, driver: str, *kernel: str) -> None:
        """Ubuntu's archive has signed modules: for a kernel's release, or for a kind of kernels, now of this kernel."""
        series = "%s-server" % driver.split(".")[0]
        name = "linux-modules-nvidia-%s-open-" % series
        tied = ["%s%s (= %s)" % (name, kernel[0], version)] if kernel else [
            "linux-image-%s" % end, "linux-signatures-nvidia-%s (= %s)" % (end, version)]
        common = "nvidia-kernel-common-" + series
        self.modules.setdefault(name + end, {})[version] = ", ".join([
            *tied, "%s (<= %s-1)" % (common, driver), "%s (>= %s)" % (common, driver)])

    def say_signed(self, driver: str, kernel: str) -> None:
        """SUSE's repositories have signed modules of a driver, built for this kernel."""
        short = "nvidia-open-driver-%s-signed-cuda-kmp-%s" % (
            "G07" if int(driver.split(".")[0]) >= 590 else "G06", kernel.rpartition("-")[2])
        version = "%s_k%s-150700.3.1" % (driver, kernel.rpartition("-")[0].replace("-", "_"))
        self.modules["%s-%s" % (short, version)] = {version: ""}

    def say_kmod(self, driver: str, kernel: str, *kind: str) -> None:
        """There are modules of a driver for this kernel of EL: NVIDIA's, or 'open', Red Hat's."""
        bare = kernel.partition(".el")[0]
        name = "kmod%s-nvidia%s-%s-%s" % (
            "-64k" if kernel.endswith("+64k") else "", "-open" if kind else "", driver, bare)
        self.modules[name] = {"3:%s-3.el9" % driver: ""}

    def say_signers(self, *names: str) -> None:
        """The kernel takes signatures of these keys alone."""
        self.signers = names

    def say_staged(self, release: str, version: str, *state: str) -> None:
        """A module was built ahead for a kernel; 'torn', 'proprietary' (another package's), or why it could not be.

        Without a version but 'unfinished': a run was stopped while it was built.
        """
        package = "nvidia-kernel-dkms" if state == ("proprietary",) else "nvidia-kernel-open-dkms"
        why = "" if state in ((), ("torn",), ("proprietary",)) else " ".join(state)
        self._discard(release)
        if version == "unfinished":
            self.staged += (StagedBuild(release),)
            return
        self.staged += (StagedBuild(release, version, {package: version + "-1"}, state != ("torn",), why),)

    def say_tools(self) -> None:
        """DKMS and a compiler are there."""
        self.tools = True

    def say_offered(self, *versions: str) -> None:
        """Drivers in the repository."""
        self.versions = versions

    def say_no(self, *what: str) -> None:
        """'no headers' or 'no dkms' in the sources, or 'no script': the package's builds nothing."""
        self.tools_offered = self.tools_offered and what != ("dkms",)
        self.headers_offered = self.headers_offered and what != ("headers",)
        self.script_builds = self.script_builds and what != ("script",)

    def say_registers(self, *kernels: str) -> None:
        """An OFED comes, for these kernels or the running one."""
        self.registers = kernels or (self.facts.kernel,)

    def say_not_for(self, *kernels: str) -> None:
        """That OFED was built for other kernels than these, and is found beside them too."""
        self.not_theirs = kernels

    def say_peers(self, *packages: str) -> None:
        """All that the repository has of GPUDirect Storage and GDRCopy; 'nvidia-fs-dkms=2.13.5-1' is another one."""
        found = dict(each.partition("=")[::2] for each in packages)
        self.peers_offered = {name: version or PEER_VERSIONS[name] for name, version in found.items()}

    def say_beside(self, module: str, uses: str = "0") -> None:
        """A module beside the driver's is loaded, and so often in use."""
        self.peers_loaded[module] = int(uses)

    def say_pruned(self, *versions: str) -> None:
        """The repository has these no more."""
        self.versions = tuple(version for version in self.versions if version not in versions)

    def say_cleaned(self) -> None:
        """Somebody runs `apt-get clean`."""
        self.archives = ()

    def say_lost(self) -> None:
        """Somebody removes what we keep, too."""
        self.archives, self.kept = (), ()

    def say_unfinished(self, *packages: str) -> None:
        """A transaction of ours was stopped in these."""
        self.more = {**self.more, "broken": packages, "ours_unfinished": True}

    def say_locked(self, *names: str) -> None:
        """Somebody keeps them as they are, by `zypper addlock`."""
        self.locked = names

    def say_hidden(self, *names: str) -> None:
        """Somebody has told dnf to leave them out (excludepkgs)."""
        self.more = {**self.more, "hidden": names}

    def say_unsupported(self, path: str) -> None:
        """modprobe refuses modules that SUSE does not support, by this file."""
        self.unsupported = path

    def say_theirs(self) -> None:
        """What was stopped was no transaction of ours."""
        self.more = {**self.more, "ours_unfinished": False}

    def say_repository(self, path: str) -> None:
        """A file of somebody else names our repository."""
        self.more = {**self.more, "foreign_sources": (path,)}

    def say_left(self, name: str, version: str) -> None:
        """A transaction of ours was stopped after this package of rpm had come."""
        manager = manager_of(self.facts)
        assert manager in HISTORIES
        left = HISTORIES[manager].Unfinished(doubtful={name: version})
        self.more = {**self.more, "broken": (name,), "ours_unfinished": True,
                     "of_rpm": OfRpm(dict(self.trusted), self.our_keys, left)}

    def dnf_finish(self, step: Step) -> None:
        """What is installed once more runs the script of the one that goes last: it takes a module that it has built,
        and links to modules that came built."""
        for name, version in step.change["after"].items():
            assert self.installed[name] == version
        if building.loses(step.change["after"]) or any(name in self.modules for name in step.change["after"]):
            self.kernels = tuple(replace(kernel, **NO_MODULE) for kernel in self.kernels)
            self._tell()
        self.more = {each: value for each, value in self.more.items()
                     if each not in ("broken", "ours_unfinished", "of_rpm")}

    zypper_finish = dnf_finish

    def say_key(self, *states: str) -> None:
        """DKMS has a key: 'enrolled', 'pending', 'unknown'; 'unusable' where others can read it."""
        self.signing_key = replace(
            self.signing_key, name="ours", serial="5e71a1", sha1="cd" * 20,
            state=next((state for state in states if state != "unusable"), UNKNOWN),
            objection="/var/lib/dkms/mok.key has mode 0644" if "unusable" in states else "")

    def confirm(self) -> None:
        self._answered(ENROLLED)

    def say_confirmed(self) -> None:
        """Somebody confirms the key at the console of a boot."""
        self.confirm()

    def say_missed(self) -> None:
        """Nobody does, and MOK Manager drops the request."""
        self._answered(UNKNOWN)

    def _answered(self, state: str) -> None:
        assert self.signing_key.state == PENDING, "nothing waits"
        self.signing_key = replace(self.signing_key, state=state)
        self.kernels = tuple(replace(kernel, trusted=state == ENROLLED) for kernel in self.kernels)
        self._tell()

    def say_indexed(self, *files: str) -> None:
        """Files of apt's that hold the repository's index."""
        self.more = {**self.more, "lists": files}

    def say_loaded(self, *module: str) -> None:
        """The installed driver is loaded."""
        self.facts = self.facts.but(driver_loaded=self.facts.driver_installed or self.facts.driver_userspace,
                                    module_loaded=module[0] if module else self.facts.module_installed)


def made(world: World, wanted: Policy, there: HostFacts) -> Plan:
    return planner.plan(world.observe(wanted, there), wanted, there)
