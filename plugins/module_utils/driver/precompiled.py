# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Modules that come built and signed: what is checked of them, and what is to be known. Which they are: prebuilt.py."""
from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from ..core.errors import GpuOpsError
from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.refusal import Refusal
from ..core.steps import Executor
from ..hardware.boot import Module, installed_module, kind_of, read_module
from ..packages.managers import APT, manager_of
from ..packages.rpm import database
from . import catalogue, modules_again
from .building import SOURCE, essential, runs_already
from .kernels import Kernel, is_trusted, known_keys, remember_failure
from .policy import Policy
from .prebuilt import follows
from .signing import asked_for
from .target import Target

NAME = "driver"
VERIFY = "module.verify"
_BEGINS = "linux-modules-nvidia-"
# Of suse-module-tools
_LINKS = "/usr/lib/module-init-tools/weak-modules2"
_IMAGE = re.compile(r"^linux-image-(?:unsigned-)?(\d.*)$")


def has_module(kernel: Kernel, target: Target) -> bool:
    """Whether the set brings modules for a kernel."""
    return any(catalogue.serves(name, kernel.release) for name in target.packages.names)


def refuse_signer(
    kernels: Sequence[Kernel], signers: Optional[Sequence[str]], policy: Policy, facts: HostFacts, target: Target
) -> List[Refusal]:
    """Refuse modules whose signature the kernel would not take. signers: see OfRpm; those of a distribution have a key
    that its kernels know."""
    of_nvidia = any(catalogue.EL_MODULES.match(name) and not catalogue.is_of_red_hat(name)
                    for name in target.packages.names)
    if not of_nvidia or not asked_for(policy, facts) or signers is None or catalogue.SIGNER_OF_NVIDIA in signers:
        return []
    if all(_is_right(kernel, policy, facts, target) for kernel in kernels if essential(kernel, facts)):
        return []
    return [Refusal(
        "driver.precompiled_signer_unknown",
        "Secure Boot is on, and no key called %s is enrolled: it signs NVIDIA's own modules" % (
            catalogue.SIGNER_OF_NVIDIA),
        "kernel modules that the kernel will load",
        "fetch the certificate beside the packages (NVIDIA2019-public_key.der or a later one), `mokutil --import` it, "
        "and confirm it at the console of the next boot; or set `build` to `dkms`", option="build")]


def refuse_way_back(kernels: Sequence[Kernel], facts: HostFacts, target: Target) -> List[Refusal]:
    """Refuse to return to modules of other kernels than those that run and boot next."""
    lacking = [kernel.release for kernel in kernels if essential(kernel, facts) and not has_module(kernel, target)]
    if not target.is_precompiled or not lacking:
        return []
    served = [kernel.release for kernel in kernels if has_module(kernel, target)]
    return [Refusal(
        "driver.recorded_modules_of_other_kernels",
        "driver %s was there with modules for %s, and not for kernel %s" % (
            target.version, "kernel " + " and ".join(served) if served else "kernels that are gone",
            " and ".join(lacking)),
        "modules that came built for the kernels that run and boot next",
        "%sinstall a driver that has them (`state: present`)" % (
            "boot kernel %s and make it the default of the boot loader, or " % served[-1] if served else ""))]


def _is_right(kernel: Kernel, policy: Policy, facts: HostFacts, target: Target) -> bool:
    return (kernel.module == target.version and kind_of(kernel.license) in ("", target.module)
            and (kernel.trusted or not asked_for(policy, facts)))


def verify_steps(
    kernels: Sequence[Kernel], policy: Policy, facts: HostFacts, target: Target, packages: Optional[Step],
    again: Iterable[str] = ()
) -> List[Step]:
    """What the packages bring is looked at as what DKMS builds is: version, kernel module and signer of each kernel's.

    The packages' own scripts put modules together and index them; once they have, the step is not needed any more.
    again: packages that are installed once more as a transaction that was stopped is ended.
    """
    coming: Mapping[str, Any] = packages.change["after"] if packages else {}
    exchanged = any(version is None or catalogue.PREBUILT_MODULES.match(name) for name, version in coming.items()
                    if catalogue.FAMILY.match(name)) or any(map(catalogue.PREBUILT_MODULES.match, again))
    mended = "" if manager_of(facts) is APT else " Where another lies there, that package is installed once more."
    return [Step(
        NAME, VERIFY, kernel.release,
        "Its module comes with a package, signed by who built it; it has to be the one of driver %s.%s" % (
            target.version, mended),
        change={"before": {"nvidia": None}, "after": {"nvidia": target.version}},
        parameters={"module": target.module, "signed": asked_for(policy, facts),
                    "essential": essential(kernel, facts)},
        depends_on=(packages.id,) if packages else ())
        for kernel in kernels if has_module(kernel, target)
        and (exchanged or not (_is_right(kernel, policy, facts, target) or _is_given_up(kernel, facts, target)))]


def _is_given_up(kernel: Kernel, facts: HostFacts, target: Target) -> bool:
    """Whether an earlier run has found that a kernel which need not have the module would not load it."""
    return kernel.failed == target.version and not essential(kernel, facts)


def notes(
    kernels: Sequence[Kernel], installed: Mapping[str, str], coming: Mapping[str, str], policy: Policy,
    facts: HostFacts, target: Target
) -> List[str]:
    told = []
    if coming and runs_already(facts, target):
        told.append("Driver %s is loaded already: the kernel module that comes now (%s) is in use after the next boot."
                    % (target.version, target.module))
    # With its package goes what DKMS has built, for every kernel
    loses = any(map(SOURCE.match, set(target.leaves).intersection(installed)))
    told += ["Kernel %s has no signed module of driver %s: do not boot it for GPU work." % (
        kernel.release, target.version) for kernel in kernels
        if not essential(kernel, facts) and not has_module(kernel, target)
        and (loses or kernel.module != target.version)]
    told += ["Kernel %s, which neither runs nor boots next, would not load the module of driver %s that a package "
             "brings for it: do not boot it for GPU work." % (kernel.release, target.version) for kernel in kernels
             if has_module(kernel, target) and _is_given_up(kernel, facts, target)
             and not _is_right(kernel, policy, facts, target)]
    new = [match.group(1) for match in map(_IMAGE.match, sorted(coming)) if match]
    told += ["Kernel %s comes along, with its modules: the package that follows kernel updates is of this one." % each
             for each in dict.fromkeys(new)]
    if not policy.kernel_hold and any(map(catalogue.FAMILY.match, coming)):
        told += ["No modules that follow the updates of linux-image-%s fit driver %s and a kernel that is there: the "
                 "next kernel may come without a module, and `kernel_hold` keeps it off." % (kind, target.version)
                 for kind in follows(installed) if not _follower(kind, {*installed, *coming}.difference(target.leaves))]
    return told


def _follower(kind: str, names: Iterable[str]) -> bool:
    """Whether a metapackage of modules is among these that goes with kernels of a kind."""
    return any(re.fullmatch(_BEGINS + r"\d+-server(-open)?-" + re.escape(kind), name) for name in names)


def _index(host: Host, release: str) -> None:
    """Renew what modprobe goes by: links to SUSE's modules, and the index.

    The scripts of SUSE's packages leave a kernel without links where a package is installed once more, unless they are
    of 2026 (suse-module-tools, kmp-script), and where a module of DKMS was still there as it came (weak-modules2).
    """
    if host.exists(_LINKS):
        for name in sorted(database.installed(host)):
            if catalogue.serves(name, release):
                host.run([_LINKS, "--add-kmp", name], check=False, timeout=600)
    host.run(["depmod", release], check=False, timeout=600)


def verify_module(host: Host, journal: Journal, step: Step) -> None:
    """The file that modprobe would load for this kernel; links and an index that lag behind are renewed first, and its
    package is installed once more where another's file is in its place.

    A kernel that neither runs nor boots next holds up nothing: that it would not load the module is remembered.
    """
    wrong = _objection(host, journal, step)
    if wrong is None:
        return
    if step.parameters.get("essential", True):
        raise wrong
    remember_failure(host, journal, step.subject, step.change["after"]["nvidia"])


def _objection(host: Host, journal: Journal, step: Step) -> Optional[GpuOpsError]:
    """Why the kernel would not load the module, once what can be done about it is done."""
    version = step.change["after"]["nvidia"]
    module = installed_module(host, step.subject)
    if module.version != version:
        _index(host, step.subject)
        module = installed_module(host, step.subject)
    packages: Mapping[str, str] = {}
    if not _is_asked_for(module, step):
        packages = modules_again.packages_of(host, step.subject, version)
        if packages:
            modules_again.install_again(host, journal, packages)
            _index(host, step.subject)
            module = installed_module(host, step.subject)
    if not _is_asked_for(module, step):
        return GpuOpsError(
            "driver.precompiled_module_not_there",
            found="kernel %s would load %s" % (step.subject, "%s, driver %s with the %s kernel module" % (
                module.path, module.version or "(no version)", module.kind or "unknown")
                if module.path else "no module of NVIDIA's"),
            wanted="driver %s with the %s kernel module, from its package" % (version, step.parameters["module"]),
            remedy="see `modinfo -k %s nvidia` and `dkms status`; take away what lies beside the package's modules, "
                   "%sand run again" % (step.subject, "see that `%s` works, " % modules_again.by_hand(host, packages)
                                        if packages else ""))
    return _distrust(host, module, version) if step.parameters["signed"] else None


def _distrust(host: Host, module: Module, version: str) -> Optional[GpuOpsError]:
    known = known_keys(host)
    for path in host.glob(module.path.rpartition("/")[0] + "/nvidia*.ko*"):
        each = read_module(host, path)
        if each.version in ("", version) and not is_trusted(each, known):
            return GpuOpsError(
                "driver.precompiled_module_not_trusted",
                found="%s is signed by %s, whom neither firmware nor kernel knows" % (path, each.signer or "nobody"),
                wanted="a signature that the kernel takes under Secure Boot",
                remedy="take away what lies beside the package's modules (`dkms status`) and run again, or boot a "
                       "kernel that the distribution has signed together with its modules, or set `build` to `dkms` "
                       "with an enrolled key")
    return None


def _is_asked_for(module: Module, step: Step) -> bool:
    return module.version == step.change["after"]["nvidia"] and module.kind in ("", step.parameters["module"])


EXECUTORS: Dict[str, Executor] = {VERIFY: verify_module}
