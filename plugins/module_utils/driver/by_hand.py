# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What to type on a system whose package manager is not driven here: the same set, by hand. Pure."""
from __future__ import annotations

import shlex
from typing import List, Sequence, Union

from ..core.facts import HostFacts
from ..core.refusal import Refusal
from ..packages.apt import keys
from . import catalogue
from .catalogue import Resolution
from .peer_builds import wanted_products
from .policy import Policy
from .tables import kernel_locks
from .tables.boot_tools import command
from .tables.peers import packages_of
from .target import wanted_of

_LISTING = {"dnf": "dnf list --showduplicates %s", "zypper": "zypper search --details %s"}


def refusal(policy: Policy, facts: HostFacts, kernels: Sequence[str]) -> Refusal:
    """Why nothing is installed here, and what would be. kernels: releases that can be booted."""
    wanted = "packages of source %s on Debian, Ubuntu, EL 9 and 10, or SLES and Leap 15 and 16" % policy.source
    found = "%s %s" % (facts.os_id or "an unknown system", facts.os_version)
    if policy.comes_from.is_installer:
        return Refusal(
            "driver.runfile_by_hand", found,
            "Debian, Ubuntu, EL 9 and 10, or SLES and Leap 15 and 16, where NVIDIA's installer is run by us",
            "run the installer yourself, with `--silent` and `--dkms`, and set `source` to `preinstalled`",
            option="source")
    resolved = resolution(policy, facts, kernels)
    if resolved is None:
        return Refusal(
            "driver.system_not_supported", found, wanted,
            "install the driver yourself and set `source` to `preinstalled`", option="source")
    if isinstance(resolved, Refusal):
        return resolved
    return Refusal(
        "driver.install_by_hand", "%s, where source %s is not driven yet" % (found, policy.source), wanted,
        "%s; then set `source` to `preinstalled`" % "; ".join(
            "(%d) %s" % numbered for numbered in enumerate(instructions(resolved, policy, facts), 1)), option="source")


def resolution(policy: Policy, facts: HostFacts, kernels: Sequence[str]) -> Union[Resolution, Refusal, None]:
    """The full set of the policy on this host, None on a system that the catalogue does not know."""
    if catalogue.system_of(facts.os_id, facts.os_version, facts.arch) is None:
        return None
    branch = catalogue.branch_wanted(policy.version) or catalogue.LONG_TERM_BRANCH
    choice = catalogue.choose_module(facts.gpus, policy.kernel_module, branch)
    if choice.refusal is not None:
        return choice.refusal
    key = policy.repository_key if policy.repository_key.startswith(("/", "http")) else ""
    return catalogue.resolve(
        wanted_of(policy, facts, branch, choice.module), policy.build, facts.secure_boot, kernels,
        policy.repository_url, "file://" + key if key.startswith("/") else key, policy.repository_key_fingerprint)


def instructions(resolved: Resolution, policy: Policy, facts: HostFacts) -> List[str]:
    """What to do, in order; commands in backticks."""
    told = _repositories(resolved, policy)
    manager = resolved.wanted.system.manager
    if resolved.stream:
        told.append("`dnf module reset nvidia-driver`, then `dnf module enable %s`" % resolved.stream)
    if not policy.exact:
        told.append("choose one version of %s for all packages, in the place of %s below (`%s`)" % (
            "branch %s" % policy.version if policy.version else "the driver", resolved.version,
            _LISTING[manager] % resolved.packages.anchor))
    for name in sorted(resolved.packages.bounded):
        told.append("see that %s was made for driver %s (`%s info %s`): it takes no other" % (
            name, resolved.version, manager, name))
    if facts.secure_boot and _is_of_nvidias_key(resolved):
        told.append("fetch the certificate of NVIDIA's modules (NVIDIA2019-public_key.der or a later one, beside the "
                    "packages), `mokutil --import` it, and confirm it at the console of the next boot: no kernel knows "
                    "that key")
    if policy.kernel_headers and resolved.headers + resolved.compiler:
        told.append("`%s`" % shlex.join([manager, "install", *resolved.compiler, *resolved.headers]))
    told.append("`%s`" % shlex.join([manager, "install", *resolved.requests()]))
    if policy.hold:
        told.append("`%s`" % shlex.join(resolved.lock()))
    if policy.kernel_hold:
        told.append("`%s`" % shlex.join(kernel_locks.lock(resolved.wanted.system, facts.kernel)))
    return told + _beside(resolved, policy)


def _is_of_nvidias_key(resolved: Resolution) -> bool:
    """Whether the modules come built, and not from the distribution, whose key its kernels know."""
    wanted = resolved.wanted
    return wanted.build == catalogue.PRECOMPILED and wanted.system.has_streams and not wanted.of_distribution


def _beside(resolved: Resolution, policy: Policy) -> List[str]:
    """What comes after the driver: its modules are built against it."""
    system = resolved.wanted.system
    products = {peer: packages_of(peer, system, policy.comes_from.of_distribution) for peer in wanted_products(policy)}
    told = ["`%s`" % shlex.join([system.manager, "install", *names]) for names in products.values() if names]
    told += ["install %s yourself (no package is known for this system)" % peer.called
             for peer, names in products.items() if not names]
    if policy.kernel_arguments:
        told.append("`%s`, then reboot" % shlex.join(command(system.family, policy.kernel_arguments)))
    return told


def _repositories(resolved: Resolution, policy: Policy) -> List[str]:
    told = []
    repository = resolved.repository
    if repository is not None:
        key = " signed by %s" % repository.key if repository.key else ""
        if keys.is_armoured(policy.repository_key):
            key = " signed by the key in `repository_key`"
        fingerprint = " (fingerprint %s)" % repository.fingerprint if repository.fingerprint else ""
        told.append("add the repository %s%s%s" % (repository.url, key, fingerprint))
    elif policy.from_repository:
        told.append("add a repository with NVIDIA's packages (it has no directory for this system)")
    if resolved.enabled_first:
        told.append("enable the repositories %s" % ", ".join(resolved.enabled_first))
    if resolved.brought_first:
        told.append("`%s`" % shlex.join([resolved.wanted.system.manager, "install", *resolved.brought_first]))
    return told
