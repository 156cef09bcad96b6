# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A model of a host and of a driver repository: what steps do to it, without a host."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.files import OUR_FILES
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.observation import (
    Observation,
    Offer,
    goes_down,
    header_packages,
    index_needed,
    requested,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.origin import origin_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.policy import Policy, from_parameters
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.target import Target, anchors, target_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Simulation

A100, T4, V100, B200, B300, GH200 = "20b2", "1eb8", "1db6", "2901", "3182", "2342"
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


def facts(*device_ids: str, **changes: Any) -> HostFacts:
    gpus = tuple(Gpu("0000:%02x:00.0" % number, device_id) for number, device_id in enumerate(device_ids, 1))
    there = HostFacts(hostname="gpu1", os_id="debian", os_version="12", arch="x86_64", kernel="6.1.0-50-amd64",
                      boot_kernel="6.1.0-50-amd64", gpus=gpus)
    return there.but(**changes)


def policy(**changes: Any) -> Policy:
    given: Dict[str, Any] = {
        "state": "present", "source": "nvidia_repository", "version": "580.178.04", "kernel_module": "auto",
        "flavour": "headless", "repository_url": "http://mirror/debian12/x86_64", "repository_key": KEY,
        "repository_key_fingerprint": "", "fabric_manager": "auto", "extra_packages": [], "kernel_headers": True,
        "lock": True, "secure_boot": "require_signed",
    }
    given.update(changes)
    return from_parameters(given)


@dataclass
class World:
    """A host: what dpkg, /etc and /lib/modules hold; and what its repository offers."""

    installed: Dict[str, str] = field(default_factory=dict)
    files: Dict[str, str] = field(default_factory=dict)
    kernels: Tuple[Kernel, ...] = (Kernel("6.1.0-50-amd64"),)
    versions: Tuple[str, ...] = VERSIONS
    headers_offered: bool = True
    originals: Dict[str, Optional[str]] = field(default_factory=dict)
    brought: Dict[str, str] = field(default_factory=dict)
    archives: Tuple[str, ...] = ()
    script_builds: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)

    def observe(self, wanted: Policy, there: HostFacts) -> Observation:
        seen = Observation(
            installed=dict(self.installed), kernels=self.kernels, brought=dict(self.brought),
            files={path: self.files.get(path) for path in OUR_FILES}, originals=dict(self.originals),
            removable=tuple(self.brought) if wanted.state == "absent" else ())
        seen = replace(seen, **self.more)
        if wanted.state != "absent" and index_needed(seen, wanted, there):
            return replace(seen, offer=self._offer(seen, wanted, there), archives=self.archives)
        return seen

    def _offer(self, seen: Observation, wanted: Policy, there: HostFacts) -> Offer:
        packages = {"%s-1" % version: version for version in self.versions}
        versions: Dict[str, List[str]] = {name: sorted(packages, reverse=True) for name in anchors(wanted, there)}
        target = target_of(wanted, there, seen.installed, versions)
        if not isinstance(target, Target):
            return Offer(versions=versions, key=origin_of(wanted, there).key_text)
        for name in target.packages.required + target.packages.optional:
            versions[name] = sorted(packages, reverse=True)
        headers = header_packages(seen, wanted)
        versions.update(dict.fromkeys(headers, ["6.1.176-1"] if self.headers_offered else []))
        key = origin_of(wanted, there).key_text
        request = requested(target, seen, versions, headers)
        if not request:
            return Offer(versions=versions, key=key)
        comes: Tuple[str, ...] = ()
        if any(name in request for name in target.packages.required):
            request["libnvidia-ml1"], comes = "%s-1" % target.version, ("dkms",)
        installs = {**request, **dict.fromkeys(comes, "3.0.10-8")}
        installs = {name: version for name, version in installs.items() if self.installed.get(name) != version}
        before = {name: self.installed[name] for name in installs if name in self.installed}
        return Offer(versions=versions, key=key, transaction=Simulation(
            installs, (), before=before, request=request, allow_downgrade=goes_down(self.installed, installs),
            named=("libnvidia-ml1",) if comes else ()))

    def apply(self, plan: Plan, there: HostFacts) -> None:
        for step in plan.steps:
            getattr(self, "_" + step.action.replace(".", "_"))(step, there)

    def _file_write(self, step: Any, there: HostFacts) -> None:
        self.originals.setdefault(step.subject, self.files.get(step.subject))
        self.files[step.subject] = step.change["after"]

    def _file_remove(self, step: Any, there: HostFacts) -> None:
        self.originals.setdefault(step.subject, self.files.get(step.subject))
        self.files.pop(step.subject)

    def _file_restore(self, step: Any, there: HostFacts) -> None:
        before = self.originals.pop(step.subject)
        self.files.pop(step.subject, None)
        if before is not None:
            self.files[step.subject] = before

    def _packages_download(self, step: Any, there: HostFacts) -> None:
        self.archives += tuple("%s_%s_amd64.deb" % package for package in step.change["after"].items())

    def _packages_install(self, step: Any, there: HostFacts) -> None:
        for name, version in step.change["after"].items():
            self.installed.pop(name, None)
            if version is not None:
                self.brought.setdefault(name, version)
                self.brought[name] = self.installed[name] = version
        self.kernels = tuple(
            replace(kernel, headers=kernel.headers or "linux-headers-" + kernel.release in self.installed)
            for kernel in self.kernels)
        anchor = [name for name in step.change["after"] if name.endswith(("dkms", "dkms-open", "-open"))]
        if anchor:
            version = step.change["after"][anchor[0]].split("-")[0]
            self.kernels = tuple(replace(kernel, module="") for kernel in self.kernels)
        if anchor and self.script_builds:
            self._build((there.kernel, self.kernels[-1].release), version)

    def _packages_remove(self, step: Any, there: HostFacts) -> None:
        for name in step.change["after"]:
            self.installed.pop(name)
            self.brought.pop(name)
        self.kernels = tuple(replace(kernel, module="", headers=False) for kernel in self.kernels)

    def _dkms_build(self, step: Any, there: HostFacts) -> None:
        self._build((step.subject,), step.change["after"]["nvidia"])

    def _build(self, releases: Tuple[str, ...], version: str) -> None:
        self.kernels = tuple(
            replace(kernel, module=version) if kernel.release in releases and kernel.headers else kernel
            for kernel in self.kernels)


def made(world: World, wanted: Policy, there: HostFacts) -> Plan:
    return planner.plan(world.observe(wanted, there), wanted, there)
