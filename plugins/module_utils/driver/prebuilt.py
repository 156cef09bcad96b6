# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether the kernel modules are built here or come built and signed by the distribution, and which those are. Pure.

What is relied upon of Ubuntu's packages (source package linux-restricted-modules, Ubuntu's kernel team)
  linux-modules-nvidia-BRANCH-server[-open]-RELEASE is of one kernel. Its version is that kernel's. Its dependency on
  nvidia-kernel-common-BRANCH-server is the tie to user space, so that modules of another branch leave with their user
  space, and its bounds begin with the driver that it was made for. Above that driver end those of -open alone: of
  kernel 5.15.0-106-generic, 535-server-open has (<= 535.161.08-1) and (>= 535.161.08), 535-server the second alone. So
  apt would take any newer user space beside the proprietary module, which then does not load: what the bounds begin
  with has to be the driver itself.
  linux-objects-nvidia-... and linux-signatures-nvidia-RELEASE are what it is put together from on the host, the first
  of the proprietary module alone, the second where kernels are signed (amd64). It depends on them in its own version:
  they are named, so that a plan shows them, and never chosen.
  linux-modules-nvidia-BRANCH-server[-open]-FLAVOUR has the lower bound alone, of both kinds, and depends on the modules
  of the newest kernel of its flavour, which depend on that kernel: it follows the kernel's metapackage
  linux-image-FLAVOUR. Of one whose kernel is not there yet the host would get that kernel: it waits until the kernel
  has come. It provides nvidia-dkms-BRANCH-server[-open] in the driver's version: what depends on DKMS's package is
  content with it.
  User space without a module is nvidia-headless-no-dkms-BRANCH-server[-open]; nvidia-headless-BRANCH-server[-open] is
  the same with nvidia-dkms-BRANCH-server[-open]. Both kinds of modules do not conflict: depmod prefers what DKMS has
  built (updates/dkms), so that DKMS's package has to leave.

Packages of rpm have the driver's version, and their names, as the database has them, the kernel's. One of SUSE's may
serve several kernels, and is the only one of its flavour (tables/suse.py); one of NVIDIA's or Red Hat's for EL serves
one kernel (tables/enterprise.py). Of those that were there before, none stays.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ..core.facts import HostFacts
from ..core.refusal import Refusal
from ..core.versions import version_key
from ..packages.apt.versions import compare, newest_first
from ..packages.rpm.versions import newest_first as newest_rpm_first
from . import catalogue
from .catalogue import DKMS, PRECOMPILED, PackageSet, Wanted
from .kernels import Kernel
from .policy import AUTO, IGNORE, Policy
from .tables.systems import APT

# Not linux-modules-nvidia-fs-RELEASE: with Ubuntu's kernels for NVIDIA's systems comes GPUDirect Storage
_MODULES = re.compile(r"^linux-(modules|objects|signatures)-nvidia-(?!fs-)")
_BUILT_BY_DKMS = re.compile(r"^nvidia-(dkms-|(open-)?driver-G\d+$)")
_BUILT_HERE = re.compile(r"^nvidia-(dkms-|(headless|driver)-\d)")
_OF_SERIES = re.compile(r"^linux-(?:modules|objects)-nvidia-(\d+(?:-server)?(?:-open)?)-(?!server|open)")
# '6.8.0-90-generic' in a package's name, not the 'generic-6.8' of a metapackage
_RELEASE = re.compile(r"-\d+\.\d+\.\d+-")
_BOUND = re.compile(r"\bnvidia-kernel-common-[\w.-]+ \((<<|<=|=|>=|>>) ([^)]+)\)")
_TIED = re.compile(r"\b(linux-(?:objects|signatures)-nvidia-[\w.+-]+) \(= ([^)]+)\)")
_KEEPS: Dict[str, Callable[[int], bool]] = {
    "<<": lambda order: order < 0, "<=": lambda order: order <= 0, "=": lambda order: order == 0,
    ">=": lambda order: order >= 0, ">>": lambda order: order > 0}


@dataclass(frozen=True)
class Prebuilt:
    """What there is of modules that somebody else has built.

    kernels: those that can be booted.
    ours:    packages that came by us.
    offered: {package of modules: {version: what it depends on}}; None where nobody has looked.
    half:    packages of the driver that dpkg has not finished: they tell of the kind of modules as the others do.
    unread:  sources of the host that cannot be read, in the words of the package manager.
    """

    kernels: Tuple[Kernel, ...] = ()
    ours: FrozenSet[str] = frozenset()
    offered: Optional[Mapping[str, Mapping[str, str]]] = None
    half: Tuple[str, ...] = ()
    unread: Tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether it has been told what is on offer; with dnf and zypper, where no modules were found, by all sources.
        """
        return self.offered is not None and bool(self.offered or not self.unread)


NOTHING = Prebuilt()


@dataclass(frozen=True)
class Choice:
    """The driver whose modules come built.

    version:  of the driver, '' where there is none.
    packages: its set.
    fits:     {package whose version is a kernel's: that version}.
    lacking:  {kernel in use without a module of this driver: what there is for it}; () where nobody has looked, and
              where the sources do not have this driver at all.
    others:   drivers that the sources have, with modules for every kernel in use.
    """

    version: str
    packages: PackageSet
    fits: Mapping[str, str]
    lacking: Mapping[str, str]
    others: Tuple[str, ...] = ()


def kernels_in_use(kernels: Iterable[Kernel], facts: HostFacts) -> Tuple[Kernel, ...]:
    """Those that must have the module: the kernel that runs, where its modules are not gone, and the one after it."""
    return tuple(kernel for kernel in kernels if kernel.release in (facts.kernel, facts.boot_kernel))


def follows(installed: Iterable[str]) -> Tuple[str, ...]:
    """The kinds of kernels whose updates come to this host."""
    return tuple(sorted(match.group(1) for match in map(catalogue.KERNEL_METAPACKAGE.match, installed) if match))


def names(wanted: Wanted, kernels: Iterable[Kernel], installed: Iterable[str]) -> Tuple[str, ...]:
    """Packages of modules whose offer tells which driver they are made for. wanted: with the driver's version, where
    that is part of the name."""
    ends = (*(kernel.release for kernel in kernels), *follows(installed))
    return tuple(dict.fromkeys(catalogue.modules_package(wanted, end) for end in ends))


def parse_show(text: str) -> Dict[str, Dict[str, str]]:
    """{package: {version: what it depends on}} of 'apt-cache show'."""
    found: Dict[str, Dict[str, str]] = {}
    for stanza in text.split("\n\n"):
        fields = dict(re.findall(r"(?m)^(Package|Version|Depends): *(.*)$", stanza))
        if "Package" in fields and "Version" in fields:
            found.setdefault(fields["Package"], {})[fields["Version"]] = fields.get("Depends", "")
    return found


def is_made_for(depends: str, version: str) -> bool:
    """Whether modules with these dependencies are of the user space in this version of its packages: of its driver, and
    within their bounds, which alone may let newer drivers in."""
    return all(_KEEPS[relation](compare(version, bound)) for relation, bound in _BOUND.findall(depends)) and \
        driver_of("", depends) in ("", catalogue.upstream(version))


def driver_of(version: str, depends: str) -> str:
    """The driver that modules of this version with these dependencies are of, '' where they do not say so."""
    if catalogue.is_driver_version(version):
        return catalogue.upstream(version)
    return next((catalogue.upstream(bound) for relation, bound in _BOUND.findall(depends) if relation != "<<"), "")


# the decision


def build_of(
    policy: Policy, facts: HostFacts, wanted: Wanted, there: Prebuilt, installed: Mapping[str, str], is_whole: bool
) -> str:
    """DKMS or PRECOMPILED. is_whole: whether every kernel in use has or gets a module of one driver, if not built here.

    'auto' leaves the kind that is there, as long as it serves: an exchange would bring nothing. Where modules have to
    be signed it takes those that the distribution has signed, which need no key of the host's own; but a key that the
    policy names is there to be used. Those that lag behind come where they are asked for. A source that cannot be read
    is none that has no modules.
    """
    if policy.build != AUTO:
        return policy.build
    if catalogue.ways(wanted) == (PRECOMPILED,):
        return PRECOMPILED
    if PRECOMPILED not in catalogue.ways(wanted) or policy.signing_key:
        return DKMS
    used = kernels_in_use(there.kernels, facts)
    is_signed = facts.secure_boot and policy.secure_boot != IGNORE
    kind = kind_there((*installed, *there.half))
    if kind != PRECOMPILED and (not is_signed or catalogue.lags(wanted) or (
            kind == DKMS and all(kernel.module and kernel.trusted for kernel in used))):
        return DKMS
    return PRECOMPILED if is_whole or not there.is_known else DKMS


def kind_there(installed: Iterable[str]) -> str:
    """Which kind of modules is installed, '' for none; where both are, depmod takes those of DKMS."""
    names = tuple(installed)
    if any(_BUILT_BY_DKMS.match(name) or catalogue.is_built_here(name) for name in names):
        return DKMS
    return PRECOMPILED if any(map(catalogue.PREBUILT_MODULES.match, names)) else ""


def leaving(
    policy: Policy, wanted: Wanted, there: Prebuilt, installed: Mapping[str, str], built: Optional[Choice] = None
) -> Tuple[str, ...]:
    """Installed packages of the other kind, and of the other module: they leave with the transaction.

    What others have installed and does no harm stays, unless the policy names the kind. built: modules that come.
    What excludes another by its files is the catalogue's to say (catalogue.leaving()).
    """
    if PRECOMPILED not in catalogue.ways(wanted) or wanted.system.manager != APT:
        return ()
    names = sorted({*installed, *there.half})
    if wanted.build == DKMS:
        return tuple(name for name in names if _MODULES.match(name) and (
            policy.build == DKMS or name in there.ours))
    # Where no package of DKMS's is there, those that need one have what stands for it
    are_content = kind_there(names) != DKMS and (
        there.offered is None or any(_stands_for_dkms(name, wanted) for name in _metapackages_after(installed, built)))
    own = _series_of(wanted)
    return tuple(name for name in names if _series(name) not in ("", own)
                 or (_BUILT_HERE.match(name) and not are_content))


def _metapackages_after(installed: Mapping[str, str], built: Optional[Choice]) -> Tuple[str, ...]:
    """Packages with those that follow kernels: what comes, and, as long as the driver is the same, what is there."""
    if built is None:
        return ()
    is_same = all(catalogue.upstream(version) == built.version
                  for version in catalogue.family(installed, built.packages.floating).values())
    return (*built.fits, *(installed if is_same else ()))


def unbrought(wanted: Wanted, there: Prebuilt, installed: Iterable[str], leaves: Iterable[str]) -> Tuple[str, ...]:
    """DKMS's package, where what needs it would not bring it: it has to be asked for by its name."""
    stays = {*installed, *there.half}.difference(leaves)
    if PRECOMPILED not in catalogue.ways(wanted) or wanted.system.manager != APT or kind_there(stays) == DKMS:
        return ()
    if not any(_stands_for_dkms(name, wanted) for name in stays):
        return ()
    return ("nvidia-dkms-" + _series_of(wanted),)


def _stands_for_dkms(name: str, wanted: Wanted) -> bool:
    """Whether it is a metapackage of these modules: it provides DKMS's package."""
    return not _RELEASE.search(name) and _series(name) == _series_of(wanted)


def followed(installed: Mapping[str, str], ours: Iterable[str], automatic: Iterable[str]) -> Dict[str, str]:
    """{package of modules: version} of those that kernels have brought since, by a metapackage of ours: as nobody has
    asked for them, they leave with it, and user space can."""
    series = {_series(name) for name in ours if not _RELEASE.search(name)} - {""}
    return {name: installed[name] for name in automatic if name in installed and _MODULES.match(name) and series and (
        _series(name) in series or name.startswith("linux-signatures-"))}


def _series(name: str) -> str:
    """'580-server-open' of a package of modules, '' of any other one."""
    match = _OF_SERIES.match(name)
    return match.group(1) if match else ""


def _series_of(wanted: Wanted) -> str:
    return _series(catalogue.modules_package(wanted, "generic"))


def choice(
    policy: Policy, facts: HostFacts, wanted: Wanted, there: Prebuilt, installed: Mapping[str, str],
    versions: Mapping[str, Sequence[str]]
) -> Choice:
    """The driver that the policy means, as far as there are modules for the kernels in use: the installed one, else the
    newest. versions: of user space; wanted names kernel module and branch."""
    used = [kernel.release for kernel in kernels_in_use(there.kernels, facts)] or [wanted.kernel]
    wanted = replace(wanted, build=PRECOMPILED, kernel=used[-1], kernels=tuple(used), follows=follows(installed))
    named = catalogue.package_set(wanted)
    whole = dict(versions)
    built_here = catalogue.package_set(replace(wanted, build=DKMS)).anchor
    present = installed.get(named.anchor, installed.get(built_here, ""))
    whole[named.anchor] = [*versions.get(named.anchor, ()), *([present] if present else [])]
    found: List[Choice] = []
    of_version = _of_apt if wanted.system.manager == APT else _of_rpm
    for version in _versions(policy, present, whole[named.anchor]):
        exact = replace(wanted, version=version)
        found.append(of_version(policy, facts, exact, catalogue.package_set(exact), there, installed, version,
                                whole[named.anchor]))
        if not found[-1].lacking:
            return found[-1]
    if found:
        offered = {catalogue.upstream(each) for each in whole[named.anchor]}
        return replace(found[0], others=tuple(each for each in _for_all(there, used) if each in offered))
    has_looked = there.offered is not None and any(versions.values())
    return Choice(policy.version if policy.exact else "", named, {}, dict.fromkeys(used, "") if has_looked else {})


def _for_all(there: Prebuilt, releases: Sequence[str]) -> Tuple[str, ...]:
    """Drivers that there are modules of for each of these kernels, oldest first."""
    return tuple(sorted(set.intersection(*(_made(there, release) for release in releases)), key=version_key))


def _made(there: Prebuilt, release: str) -> Set[str]:
    """Drivers that there are modules of for a kernel."""
    return {driver_of(version, depends) for name, known in (there.offered or {}).items()
            if catalogue.serves(name, release) for version, depends in known.items()} - {""}


def _versions(policy: Policy, present: str, offered: Iterable[str]) -> List[str]:
    """Of the driver, what is preferred first."""
    if policy.exact:
        return [policy.version]
    known = sorted({catalogue.upstream(version) for version in offered}, key=version_key, reverse=True)
    first = [catalogue.upstream(present)] if present else []
    return [version for version in dict.fromkeys([*first, *known]) if catalogue.matches(version, policy.version)]


def _of_apt(
    policy: Policy, facts: HostFacts, wanted: Wanted, named: PackageSet, there: Prebuilt,
    installed: Mapping[str, str], version: str, offered: Iterable[str]
) -> Choice:
    packages = newest_first([each for each in offered if catalogue.upstream(each) == version])
    fits: Dict[str, str] = {}
    lacking: Dict[str, str] = {}
    for kernel in there.kernels:
        name = catalogue.modules_package(wanted, kernel.release)
        known = there.offered.get(name, {}) if there.offered else {}
        fitting = newest_first([each for each, depends in known.items()
                                if packages and is_made_for(depends, packages[0])])
        if not fitting and name in installed and kernel.module == version:
            fitting = [installed[name]]
        if fitting:
            fits[name] = fitting[0]
            fits.update(tied for tied in _TIED.findall(known.get(fitting[0], "")))
        elif kernel.release in wanted.kernels:
            lacking[kernel.release] = ", ".join(sorted(_made(there, kernel.release), key=version_key))
    lacking.update(_gone(wanted, there))
    fits.update(_metapackages(policy, facts, wanted, there, packages))
    # Without a metapackage of kernels no update of theirs comes, and there is nothing to follow
    kept = [name for name in named.optional if name not in named.bounded or name in fits]
    further = [name for name in fits if name not in named.names]
    named = replace(named, optional=(*kept, *further), bounded=named.bounded.intersection(
        (*named.required, *kept)).union(further))
    return Choice(version, named, fits, lacking if packages and there.offered is not None else {})


def _gone(wanted: Wanted, there: Prebuilt) -> Dict[str, str]:
    """As Choice.lacking, of kernels in use that cannot be booted any more."""
    bootable = [kernel.release for kernel in there.kernels]
    return {release: "" for release in wanted.kernels if release not in bootable}


def _of_rpm(
    _policy: Policy, _facts: HostFacts, wanted: Wanted, named: PackageSet, there: Prebuilt,
    installed: Mapping[str, str], version: str, offered: Iterable[str]
) -> Choice:
    """One package of modules for each name that the sources have, as one replaces the other: that which serves the
    kernels in use; of several that do, what is there already before any other."""
    known = {name: newest_rpm_first(versions)[0] for name, versions in (there.offered or {}).items() if versions}
    own = {name: each for name, each in {**known, **installed}.items()
           if catalogue.upstream(each) == version
           and any(catalogue.serves(name, kernel.release) for kernel in there.kernels)}
    newest = newest_rpm_first(own.values())
    ranked = sorted(own, key=lambda name: (
        -sum(catalogue.serves(name, release) for release in wanted.kernels), name not in installed,
        newest.index(own[name])))
    fits: Dict[str, str] = {}
    lacking: Dict[str, str] = {}
    taken: Dict[str, str] = {}
    # What weak-modules(8) has linked for a later kernel of EL is of a package of the kernel that it was built for
    linked = {name: each for name, each in installed.items() if catalogue.EL_MODULES.match(name)
              and catalogue.upstream(each) == version} if kind_there(installed) == PRECOMPILED else {}
    for kernel in sorted(there.kernels, key=lambda kernel: kernel.release not in wanted.kernels):
        short = catalogue.modules_package(wanted, kernel.release)
        first = next((name for name in ranked if catalogue.serves(name, kernel.release)
                      and taken.get(short, name) == name), "")
        if first:
            taken[short] = first
            fits[first] = own[first]
        elif kernel.module == version and linked:
            fits.update(linked)
        elif kernel.release in wanted.kernels:
            lacking[kernel.release] = ", ".join(sorted(_made(there, kernel.release), key=version_key))
    lacking.update(_gone(wanted, there))
    # Where nobody has looked yet, what is lacking is known by the name that the sources have it under
    modules = (*fits, *dict.fromkeys(catalogue.modules_package(wanted, release) for release in lacking))
    user_space = [name for name in named.required if name not in named.bounded]
    has_user_space = any(catalogue.upstream(each) == version for each in offered)
    return Choice(version, replace(named, required=(*user_space, *modules), bounded=frozenset(modules)), fits,
                  lacking if has_user_space and there.offered is not None else {})


def _metapackages(
    policy: Policy, facts: HostFacts, wanted: Wanted, there: Prebuilt, packages: Sequence[str]
) -> Dict[str, str]:
    """{package that follows the updates of a kind of kernels: version}, whose kernel is there, or is the held one."""
    found = {}
    releases = (facts.kernel,) if policy.kernel_hold else tuple(kernel.release for kernel in there.kernels)
    modules = [re.compile(r"\b%s(?![\w.+-])" % re.escape(catalogue.modules_package(wanted, release)))
               for release in releases]
    for flavour in wanted.follows:
        name = catalogue.modules_package(wanted, flavour)
        known = there.offered.get(name, {}) if there.offered else {}
        fitting = newest_first([
            version for version, depends in known.items() if packages and is_made_for(depends, packages[0])
            and any(each.search(depends) for each in modules)])
        if fitting:
            found[name] = fitting[0]
    return found


def refusal(facts: HostFacts, wanted: Wanted, chosen: Choice, unread: Sequence[str] = ()) -> Optional[Refusal]:
    """Why modules that are not built here are none for this host, None where they are there for every kernel in use.
    unread: as Prebuilt.unread."""
    if not chosen.lacking:
        return None
    there = "; ".join("%s for kernel %s" % (
        "%s is of driver %s" % (catalogue.modules_package(wanted, release), drivers) if drivers
        else "no %s" % catalogue.modules_package(wanted, release), release)
        for release, drivers in sorted(chosen.lacking.items()))
    others = [version for version in chosen.others if version != chosen.version]
    return Refusal(
        "driver.no_precompiled_module", "the sources of %s %s: %s%s" % (
            facts.os_id, facts.os_version, there, told_unread(unread)),
        "modules of driver %s that come built and signed, for the kernels that run and boot next" % (
            chosen.version or "branch %d" % wanted.branch),
        "%s%supdate the kernel and reboot into it, or set `build` to `auto` or `dkms`%s" % (
            "mend the source that cannot be read, or " if unread else _enable(wanted, chosen),
            "set `version` to %s, or " % " or ".join(others) if others else "", _built_here(wanted)),
        option="build")


def _enable(wanted: Wanted, chosen: Choice) -> str:
    """Repositories that may be missing, where there are modules of no driver for these kernels."""
    resolved = catalogue.resolve(wanted, build=PRECOMPILED)
    if any(chosen.lacking.values()) or isinstance(resolved, Refusal) or not resolved.enabled_first:
        return ""
    return "enable the repositories that have them (%s), or " % ", ".join(resolved.enabled_first)


def told_unread(sources: Sequence[str]) -> str:
    """The end of what was found in the others."""
    return "; not read: %s" % " | ".join(sources) if sources else ""


def _built_here(wanted: Wanted) -> str:
    """What else it takes that modules are built on the host."""
    if DKMS in catalogue.ways(wanted):
        return ""
    if wanted.of_distribution:
        return " and `source` to `nvidia_repository`, whose modules are built on the host"
    return " with a branch that is built on the host"
