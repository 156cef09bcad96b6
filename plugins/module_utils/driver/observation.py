# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there: packages, kernels, repository, hold; and, where packages must change, what the repository offers."""
from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from typing import AbstractSet, Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Union

from ..core.errors import GpuOpsError
from ..core.facts import HostFacts
from ..core.host import CommandTimedOut, Host
from ..core.refusal import Refusal
from ..core.secrets import hidden
from ..hardware.boot import BootState, kind_of
from ..hardware.driver_container import DriverContainer
from ..packages import space
from ..packages.apt import keys, running
from ..packages.apt.credentials import AuthFile
from ..packages.apt.index import Index, Preference, index
from ..packages.apt.versions import compare
from ..packages.dnf import history as dnf_history
from ..packages.managers import APT, manager_of
from ..packages.model import Repository, RepositoryUnreadable, Simulation
from ..packages.space import Space
from ..packages.torn import Torn
from ..packages.zypper import history as zypper_history
from . import archive, catalogue, prebuilt
from .boot_arguments import BootArguments
from .files import APT_PLACES, PIN_FILE, SOURCES_FILE, Places, pin_text, places_of, sources_text
from .kernels import Kernel
from .origin import KEY_FILE, Origin, origin_of
from .peer_builds import Peers, packages_missing, unbuilt, wanted_products
from .peer_offer import peer_transaction, peer_versions
from .policy import Policy
from .prebuilt import Prebuilt
from .preinstalled_parts import Parts
from .record import Record, is_archived
from .runfile import Installer
from .signing import SigningKey
from .staged_build import StagedBuild
from .target import Target, anchors, chosen_built, is_driven, packages_settled, target_of

KEPT_NAMES = re.compile(
    r"^(linux-(image|headers|modules)-(?!nvidia-)|kernel(-|$)|dkms$|nv-prefer-signed-open-driver(-|$)|%s)" % "|".join(
        re.escape(name) + "$" for name in (*catalogue.OF_NVLINK5, *catalogue.PEER_PACKAGES)))


@dataclass(frozen=True)
class Offer:
    """What the repository has, read into a scratch directory.

    error:         why it could not be read, '' when it was.
    refusal:       where that is no fault of the repository: what it is.
    versions:      {package: versions} of the names that were asked for.
    key:           text of the repository's key, '' when it is not ours to write.
    transaction:   what apt would do to reach the target, None when there is no target.
    unread:        other sources of this host that apt cannot read, in its words.
    space:         room for the transaction, None when there is none.
    unpacks:       {package: version} of those torn that have to be unpacked again before the transaction.
    lost:          those torn that the transaction does not replace, and that cannot be had in any version of theirs.
    returnable:    'name=version' of what the sources have of the driver that is there, and of the recorded one.
    superfluous:   {package: version} of what only the newer driver brought, and can go without taking others along.
    modules:       {package of modules that come built: {version: what it depends on}}; None where nobody has looked.
    streams:       {module: stream} that packages come from with dnf; {} where the repository has none.
    without:       ids of repositories that dnf would end at, and whose packages zypper would take from another time;
                   EVERY of what is on this host altogether.
    at_hand:       {package: its file on this host} of those that dnf or zypper installs from there.
    of_others:     {package: version} of the driver that dnf would take from another source than the wanted one.
    peer_versions: {package: versions} of the packages of GPUDirect Storage and GDRCopy that are missing, that first
                   which is taken.
    peers:         what apt would do to bring them, after the driver.
    """

    error: str = ""
    refusal: Optional[Refusal] = None
    versions: Mapping[str, List[str]] = field(default_factory=dict)
    key: str = ""
    transaction: Optional[Simulation] = None
    unread: Tuple[str, ...] = ()
    space: Optional[Space] = None
    unpacks: Mapping[str, str] = field(default_factory=dict)
    lost: Tuple[str, ...] = ()
    returnable: Tuple[str, ...] = ()
    superfluous: Mapping[str, str] = field(default_factory=dict)
    modules: Optional[Mapping[str, Mapping[str, str]]] = None
    streams: Mapping[str, str] = field(default_factory=dict)
    without: Tuple[str, ...] = ()
    at_hand: Mapping[str, str] = field(default_factory=dict)
    of_others: Mapping[str, str] = field(default_factory=dict)
    peer_versions: Mapping[str, List[str]] = field(default_factory=dict)
    peers: Optional[Simulation] = None

    @classmethod
    def failed(cls, error: GpuOpsError, key: str) -> Offer:
        """What there is of repositories of which one could not be read."""
        refusal = Refusal.from_dict(hidden(error.refusals[0].to_dict()))
        return cls(refusal.found, None if isinstance(error, RepositoryUnreadable) else refusal, key=key)


@dataclass(frozen=True)
class OfRpm:
    """What only a host with rpm has.

    trusted:     {name of a key in rpm's database: fingerprints of its primary keys}.
    our_keys:    those of them that we brought, and no other capability relies on.
    left:        what a transaction that was stopped has left.
    objections:  why dnf or zypper would not heed our locks.
    unsupported: the file by which modprobe of SLES loads no module that SUSE does not support, '' for none.
    signers:     names of the keys whose signatures the kernel takes; None where nothing tells, or nobody has to sign.
    originals:   kernels of which DKMS keeps modules of a package to put them back.
    """

    trusted: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    our_keys: Tuple[str, ...] = ()
    left: Union[dnf_history.Unfinished, zypper_history.Unfinished] = dnf_history.Unfinished()
    objections: Tuple[Refusal, ...] = ()
    unsupported: str = ""
    signers: Optional[Tuple[str, ...]] = None
    originals: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Observation:
    """What is there of the driver, whose it is, and what the repository has.

    installed:            {package: version} of the driver's family, kernels and headers.
    broken:               packages that dpkg has not finished.
    unfinished:           {package: version} of the driver's family among them, '' where dpkg knows none.
    torn:                 those of them that dpkg wants unpacked again, whoever brought them.
    build_log:            what DKMS left of the build that failed last; '' where it left none, or dpkg has finished all.
    interrupted:          whether dpkg itself was stopped in the middle.
    ours_unfinished:      whether a transaction of ours was stopped.
    kernels:              bootable kernels.
    boot:                 what boots next, and how that is known.
    files:                {path: text or None} of the files whose whole content is ours.
    foreign_sources:      other files that name the same repository.
    leftovers:            files of a driver that no package owns.
    runfile:              version of the driver of NVIDIA's installer, where it can be taken away; '' for none.
    installer:            what else there is of that installer.
    installed_by_us:      packages that our transactions brought in.
    originals:            {path: text before us or None}.
    lists:                index files of our repository in apt's state.
    archives:             names of package files in apt's cache.
    signing_key:          the key that DKMS signs with.
    offer:                what the repository has; None when nothing needs to be known of it.
    removable:            those of installed_by_us that can go without taking others along; () unless they are to go.
    hidden:               those of them that the package manager does not see, and would leave.
    held:                 {package: version} of those of the family, kernels and headers that somebody holds.
    auth:                 our file of credentials, its password masked.
    given_key:            the key that the policy names by a path on this host, as it will be written; '' otherwise.
    bindings:             whether ansible.builtin.apt finds python3-apt here; only asked when packages are to change.
    loaded_parameters:    {parameter: value} of those that the policy or our file names, as far as the loaded modules
                          tell them.
    set_elsewhere:        {parameter: {other file of modprobe.d: value}}.
    month:                'YYYY-MM' by this host's clock.
    record:               the driver before the last change of it, None where there was none.
    kept:                 names of the package files that are kept for the way back.
    stores:               whether the place of these files is there, or what a stopped run has left of it.
    offered:              whether apt is told of these files now: a transaction that needs them was stopped.
    automatic:            packages of the family that nobody has chosen by hand; only asked when packages are to change.
    brought_by:           the image that brings a driver of its own at every boot, '' where none does.
    parts:                what there is beside the kernel module; only read where the driver is to be there already.
    kernel_hold:          the text of our hold of the kernel that counts once the plan is done, '' for none.
    of_rpm:               what only a host with rpm has.
    staged:               kernel modules that were built ahead of an exchange, finished or not.
    lacking_tools:        what is not installed of what builds a module; only asked where one may be built ahead.
    peers:                the modules of RDMA, GPUDirect Storage and GDRCopy.
    arguments:            what the boot loader starts kernels with.
    container:            a driver container that works here, and what one has left.
    """

    installed: Mapping[str, str] = field(default_factory=dict)
    broken: Tuple[str, ...] = ()
    unfinished: Mapping[str, str] = field(default_factory=dict)
    torn: Mapping[str, Torn] = field(default_factory=dict)
    build_log: str = ""
    interrupted: bool = False
    ours_unfinished: bool = False
    kernels: Tuple[Kernel, ...] = ()
    boot: BootState = field(default_factory=BootState)
    files: Mapping[str, Optional[str]] = field(default_factory=dict)
    foreign_sources: Tuple[str, ...] = ()
    leftovers: Tuple[str, ...] = ()
    runfile: str = ""
    installer: Installer = Installer()
    installed_by_us: Mapping[str, str] = field(default_factory=dict)
    originals: Mapping[str, Optional[str]] = field(default_factory=dict)
    lists: Tuple[str, ...] = ()
    archives: Tuple[str, ...] = ()
    signing_key: SigningKey = SigningKey()
    offer: Optional[Offer] = None
    removable: Tuple[str, ...] = ()
    hidden: Tuple[str, ...] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    auth: AuthFile = AuthFile(current=True)
    given_key: str = ""
    bindings: bool = True
    loaded_parameters: Mapping[str, str] = field(default_factory=dict)
    set_elsewhere: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    month: str = ""
    record: Optional[Record] = None
    kept: Tuple[str, ...] = ()
    stores: bool = False
    offered: bool = False
    automatic: Tuple[str, ...] = ()
    brought_by: str = ""
    parts: Parts = Parts()
    kernel_hold: str = ""
    of_rpm: OfRpm = OfRpm()
    staged: Tuple[StagedBuild, ...] = ()
    lacking_tools: Tuple[str, ...] = ()
    peers: Peers = Peers()
    arguments: BootArguments = BootArguments()
    container: DriverContainer = DriverContainer()

    @property
    def there(self) -> Dict[str, str]:
        """{package: version} of what is installed, or will be once dpkg has finished it."""
        return {**{name: version for name, version in self.unfinished.items() if version}, **self.installed}

    @property
    def to_uninstall(self) -> str:
        """Version of the driver of NVIDIA's installer that is to be taken away where another comes, 'unknown' of half
        of one; '' for none."""
        return self.runfile or ("unknown" if self.installer.is_half else "")

    @property
    def prebuilt(self) -> Prebuilt:
        return Prebuilt(self.kernels, frozenset(self.installed_by_us),
                        self.offer.modules if self.offer and not self.offer.error else None, tuple(self.unfinished),
                        self.offer.unread if self.offer else ())

    def to_dict(self) -> Dict[str, Any]:
        """Without the room on disks and the date, which are others at each look and say nothing of what was planned."""
        told = asdict(self)
        del told["month"]
        del told["installer"]["space"]
        if told["offer"]:
            del told["offer"]["space"]
        return told


def kernels_in_use(facts: HostFacts) -> FrozenSet[str]:
    """Packages of the kernels that run and boot next: they stay, with what they need."""
    return catalogue.kernel_packages(release for release in (facts.kernel, facts.boot_kernel) if release)


def read_offer(
    host: Host, observation: Observation, policy: Policy, facts: HostFacts, origin: Origin, automatic: AbstractSet[str]
) -> Offer:
    key = ""
    try:
        key = key_text(host, observation, origin, facts)
        repositories = [Repository(origin.url, key, KEY_FILE, credentials=origin.credentials)] if origin.url else []
        with index(host, repositories, beside_system=True) as opened:
            offer = _offer(host, opened, observation, policy, facts, origin, key, automatic)
            return replace(offer, unread=opened.unread, space=space.observe(host) if offer.transaction else None)
    except GpuOpsError as error:
        return _read_at_hand(host, observation, policy, facts, origin, key, automatic) or Offer.failed(error, key)


def _read_at_hand(
    host: Host, observation: Observation, policy: Policy, facts: HostFacts, origin: Origin, key: str,
    automatic: AbstractSet[str]
) -> Optional[Offer]:
    """What apt would do with package files on this host, where a driver was staged that needs no others; else None."""
    at_hand = archives_at_hand(observation)
    if not at_hand or not origin.url or observation.files.get(SOURCES_FILE) != sources_text(origin):
        return None
    files = archive.index_of(host, archive.STORE, observation.kept, with_digests=False)
    files += archive.index_of_installed(host, observation.installed)
    try:
        with index(host, [], beside_system=True, files=files) as opened:
            offer = _offer(host, opened, observation, policy, facts, replace(origin, url=""), key, automatic)
            done = offer.transaction
            if done is None or done.problem or not all(
                    is_archived(name, version, at_hand) for each in (done, offer.peers) if each
                    for name, version in each.installs.items()):
                return None
            return replace(offer, unread=opened.unread, space=space.observe(host))
    except GpuOpsError:
        return None


def _offer(
    host: Host, opened: Index, observation: Observation, policy: Policy, facts: HostFacts, origin: Origin, key: str,
    automatic: AbstractSet[str]
) -> Offer:
    versions = opened.versions(anchors(policy, facts), origin.url)
    if not origin.url and not policy.exact:
        versions = preferred(versions, opened.preference(versions), observation.installed, policy.version)
    modules = _modules_offered(opened, observation, policy, facts, versions)
    there = replace(observation.prebuilt, offered=modules, unread=opened.unread)
    target = target_of(policy, facts, observation.installed, versions, there)
    if not isinstance(target, Target):
        return Offer(versions=versions, key=key, modules=modules)
    # What is built beside modules that come built needs them all the same
    headers = () if target.is_precompiled and not wanted_products(policy) else tuple(
        header_packages(observation, policy, facts))
    family = tuple(catalogue.family(observation.installed, target.packages.floating))
    others = {*target.packages.required, *target.packages.optional, *family}.difference(versions)
    versions.update(opened.versions(others, origin.url))
    if not origin.url:
        floating = {name: versions[name] for name in target.packages.floating.intersection(versions)}
        versions.update(preferred(floating, opened.preference(floating), observation.installed))
    versions.update(_header_versions(opened, headers))
    if not all(target.package_version(name, versions) for name in target.packages.required):
        return Offer(versions=versions, key=key, modules=modules)
    offer = _transacted(host, opened, observation, target, versions, automatic,
                        requested(target, observation, versions, headers))
    peers = peer_versions(opened, packages_missing(policy, facts, observation.installed), origin.url)
    return replace(offer, key=key, returnable=_returnable(opened, observation), modules=modules, peer_versions=peers,
                   peers=peer_transaction(opened, peers, offer.transaction))


def _modules_offered(
    opened: Index, observation: Observation, policy: Policy, facts: HostFacts, versions: Mapping[str, List[str]]
) -> Optional[Dict[str, Dict[str, str]]]:
    """{package of modules: {version: what it depends on}} of what the sources have; None where there are none such."""
    wanted = chosen_built(policy, facts, observation.installed, versions)
    if wanted is None:
        return None
    names = prebuilt.names(wanted, observation.kernels, observation.installed)
    offered = opened.versions(names)
    told = prebuilt.parse_show(opened.run("apt-cache", "show", *(name for name in names if offered[name])).stdout)
    return {name: {version: told.get(name, {}).get(version, "") for version in found}
            for name, found in offered.items()}


def _transacted(
    host: Host, opened: Index, observation: Observation, target: Target, versions: Mapping[str, List[str]],
    automatic: AbstractSet[str], request: Mapping[str, str]
) -> Offer:
    """The transaction that brings what is asked for, and what has to be unpacked before it."""
    had = _had(host, opened, observation)
    away = {name: version for name, version in catalogue.family(had, target.packages.floating).items()
            if catalogue.upstream(version) != target.version}
    if observation.torn and request:
        opened.suppose_unpacked(away)
    transaction = None if not request else _simulated(
        opened, replace(observation, unfinished={**observation.unfinished, **away}), target, request,
        _half_way(opened, observation, target), automatic, versions)
    comes = {} if transaction is None else transaction.change[1]
    left = [name for name in observation.torn if name in away or name not in comes]
    return Offer(versions=versions, transaction=transaction,
                 unpacks={name: had[name] for name in left if name in had},
                 lost=tuple(name for name in left if name not in had))


def _returnable(opened: Index, observation: Observation) -> Tuple[str, ...]:
    there = {(name, version) for name, version in observation.installed.items() if catalogue.FAMILY.match(name)}
    wanted = there.union(observation.record.packages.items() if observation.record else ())
    offered = opened.versions(name for name, _version in wanted)
    return tuple(sorted("%s=%s" % (name, version) for name, version in wanted if version in offered[name]))


# the way back


def way_back_needed(observation: Observation, policy: Policy) -> bool:
    """Whether a driver is recorded that is not the one that is there, and is the one that is asked for."""
    record = observation.record
    return record is not None and policy.roll_back_to in ("", record.version) and (
        bool(observation.torn or observation.broken) or not is_in_place(observation, record)
        or bool(superfluous(observation, record)))


def is_in_place(observation: Observation, record: Record) -> bool:
    """Whether the driver that is recorded is the one that is there."""
    if not record.runfile:
        return record.is_in_place(observation.installed) and not observation.runfile
    there = observation.installer
    return observation.runfile == record.version and not there.is_half and not there.came_otherwise(
        record.version, record.runfile)


def recorded_target(record: Record) -> Target:
    """The recorded driver, package by package; whatever of it has another version than the driver's is floating."""
    return RecordedTarget(record.version, record.kernel_module, catalogue.PackageSet(
        "", tuple(sorted(record.packages)), (),
        frozenset(name for name, version in record.packages.items() if catalogue.upstream(version) != record.version)),
        prebuilt.kind_there(record.packages) or catalogue.DKMS, file=record.runfile, exact=record.packages)


@dataclass(frozen=True)
class RecordedTarget(Target):
    """exact: {package: version}; no other version of a package belongs to this driver."""

    exact: Mapping[str, str] = field(default_factory=dict)

    def package_version(self, name: str, versions: Mapping[str, Sequence[str]]) -> str:
        return self.exact.get(name, "")


def superfluous(observation: Observation, record: Record) -> Dict[str, str]:
    """{package: version} of what is there because of us and was not then. Headers stay, and what builds modules."""
    return {name: version for name, version in observation.installed_by_us.items()
            if name not in record.ours and name not in record.packages and not KEPT_NAMES.match(name)
            and name not in catalogue.BUILDERS}


def archives_at_hand(observation: Observation) -> Tuple[str, ...]:
    """Package files on the host, apt's own and ours."""
    return tuple(sorted({*observation.archives, *observation.kept}))


def read_way_back(
    host: Host, observation: Observation, record: Record, origin: Origin, automatic: AbstractSet[str]
) -> Offer:
    """What apt would do to bring the recorded driver back."""
    named = Repository(record.url, record.files.get(KEY_FILE) or "", KEY_FILE,
                       credentials=origin.credentials if origin.url == record.url else None)
    files = archive.index_at_hand(host, record.packages)
    return way_back_from(observation, record, named, lambda repositories: _offer_back(
        host, observation, record, repositories, files, automatic))


def way_back_from(
    observation: Observation, record: Record, named: Repository, offer_back: Callable[[List[Repository]], Offer]
) -> Offer:
    """What offer_back() has; the repository is read only for what is not at hand."""
    at_hand = archives_at_hand(observation)
    lacking = [name for name, version in record.changed(observation.installed).items()
               if not is_archived(name, version, at_hand)]
    offer, error, others = None, "", bool(lacking and record.url)
    try:
        if not lacking or not record.url:
            offer = offer_back([])
        # What the driver needs beside its own packages may have gone meanwhile, as by 'apt autoremove'
        if record.url and (offer is None or offer.transaction is not None and offer.transaction.problem):
            return offer_back([named])
    except GpuOpsError as unreadable:
        error = unreadable.found
        # Who has just waited for one that never answers would wait for it again
        others = others and not isinstance(unreadable, CommandTimedOut)
    try:
        if others:
            offer = offer_back([])
    except GpuOpsError:
        # Told by the first error
        pass
    return replace(offer or Offer(), error=error)


def _offer_back(
    host: Host, observation: Observation, record: Record, repositories: List[Repository], files: str,
    automatic: AbstractSet[str]
) -> Offer:
    with index(host, repositories, beside_system=True, files=files) as opened:
        versions = opened.versions(record.packages)
        needed = record.changed(observation.installed)
        offer = Offer(versions=versions)
        if all(version in versions[name] for name, version in needed.items()):
            request = record.packages if needed or observation.broken else {}
            offer = _transacted(host, opened, observation, recorded_target(record), versions,
                                automatic | set(record.automatic), request)
            offer = replace(offer, superfluous=_superfluous(opened, observation, record, offer.transaction))
        return replace(offer, unread=opened.unread, space=space.observe(host) if offer.transaction else None,
                       returnable=tuple(sorted("%s=%s" % (name, version) for name, version in record.packages.items()
                                               if version in versions[name])))


def _superfluous(
    opened: Index, observation: Observation, record: Record, transaction: Optional[Simulation]
) -> Dict[str, str]:
    """Those that can go once the transaction is done, without anything that is not to go."""
    gone = transaction.removes if transaction else ()
    names = {name: version for name, version in superfluous(observation, record).items() if name not in gone}
    asked = dict(transaction.request) if transaction else {}
    allowed = {*names, *gone}
    done = opened.simulate_without(asked, sorted(names), goes_down(observation.installed, asked)) if names else None
    return names if done and not done.problem and set(done.removes) <= allowed else {}


def _had(host: Host, opened: Index, observation: Observation) -> Dict[str, str]:
    """{torn package: the version to unpack it in} of those that a source offers or apt has kept."""
    offered = opened.versions(observation.torn)
    found = {name: [version for version in each.versions
                    if version in offered[name] or running.kept(host, name, version)]
             for name, each in observation.torn.items()}
    return {name: versions[0] for name, versions in found.items() if versions}


def preferred(
    versions: Mapping[str, List[str]], preferences: Mapping[str, Preference], installed: Mapping[str, str],
    wanted: str = "",
) -> Dict[str, List[str]]:
    """Those versions of a host's own sources that apt would choose from: of several releases the preferred one alone,
    and what is installed.

    wanted: the branch; where only a release that comes when asked for (backports) has it, it is asked for.
    """
    found = {}
    for name, offered in versions.items():
        there = preferences.get(name, Preference("", {}))
        fitting = [version for version in offered if catalogue.matches(catalogue.upstream(version), wanted)] or offered
        best = max((there.priorities.get(version, 0) for version in fitting), default=0)
        found[name] = [version for version in offered
                       if there.priorities.get(version, 0) >= best or version in (there.candidate, installed.get(name))]
    return found


def _header_versions(opened: Index, headers: Tuple[str, ...]) -> Dict[str, List[str]]:
    """Versions of header packages, that first which apt would choose: of a metapackage the version of the kernel's
    own, which may follow backports while apt would take the headers from elsewhere."""
    offered = opened.versions(headers)
    kernels = {name: name.replace("linux-headers-", "linux-image-", 1) for name in headers}
    preferences = opened.preference([*kernels, *kernels.values()])
    found = {}
    for name, versions in offered.items():
        chosen = [preferences[each].candidate for each in (kernels[name], name) if each in preferences]
        first = [version for version in chosen if version in versions][:1]
        found[name] = first + [version for version in versions if version not in first]
    return found


def requested(
    target: Target, observation: Observation, versions: Mapping[str, List[str]], headers: Tuple[str, ...]
) -> Dict[str, str]:
    """{package: version} to ask apt for: the driver where it is not as wanted, and headers that are missing."""
    driver = {} if settled(target, observation) else target.request(versions)
    return {**driver, **{name: versions[name][0] for name in headers if versions[name]}}


def _half_way(opened: Index, observation: Observation, target: Target) -> Dict[str, str]:
    """{package: version} of what else a transaction that follows a stopped one has to ask for: every package of the
    driver that is there, in the version of the target, and what those depend on that have been unpacked already."""
    if not observation.broken:
        return {}
    there = {**observation.unfinished, **observation.installed}
    opened.prefer(_preferences(pin_text(target.pinned), observation.kernel_hold))
    missing = opened.missing()
    offered = opened.versions([name for name in {**missing, **there} if catalogue.FAMILY.match(name)])
    wanted = {name: target.package_version(name, offered) for name in offered}
    return {**{name: version for name, version in missing.items() if name not in offered},
            **{name: version for name, version in wanted.items() if version}}


def _simulated(
    opened: Index, observation: Observation, target: Target, request: Mapping[str, str], half_way: Mapping[str, str],
    automatic: AbstractSet[str], versions: Mapping[str, List[str]]
) -> Simulation:
    """The transaction as apt will do it.

    The pin of the new version tells which versions the rest of the family has to have. It is written once they are
    there, and that of the old version would have apt keep them: so they are asked for by name. So is what nothing of
    the driver needs (nvidia-imex, nvidia-settings): apt would leave it at the version before.
    """
    opened.prefer(_preferences(pin_text(target.pinned), observation.kernel_hold))
    there = {**observation.unfinished, **observation.installed}
    asked = {**half_way, **request}
    draft = opened.simulate_without(asked, target.leaves, goes_down(there, asked))
    if draft.problem:
        return draft
    family = {name: version for name, version in draft.installs.items()
              if catalogue.FAMILY.match(name) and catalogue.upstream(version) == target.version}
    if not settled(target, observation):
        # An earlier transaction may have stopped half way: apt would move what it has brought to the newest version
        family.update((name, version) for name, version in observation.installed.items()
                      if catalogue.FAMILY.match(name) and catalogue.upstream(version) == target.version
                      and name not in draft.removes)
        others = catalogue.family(observation.installed, target.packages.floating)
        family.update((name, target.package_version(name, versions)) for name in others
                      if name not in draft.installs and name not in draft.removes and name not in family
                      and target.package_version(name, versions))
    whole = {**family, **asked}
    opened.prefer(_preferences(observation.files.get(PIN_FILE) or "", observation.kernel_hold))
    followers = {name for name in set(whole).difference(request) if name not in observation.installed} \
        | automatic & set(whole)
    return replace(opened.simulate_without(whole, target.leaves, goes_down(there, whole)),
                   named=tuple(sorted(followers)))


def _preferences(*texts: str) -> str:
    return "\n".join(text for text in texts if text)


def installer_runs(observation: Observation, target: Target) -> bool:
    """Whether NVIDIA's installer has to bring the driver, or to bring it once more."""
    there = observation.installer
    if observation.runfile != target.version or there.is_half or there.user_space != target.version:
        return True
    if there.came_otherwise(target.version, target.file):
        return True
    kinds = {kind_of(kernel.license) for kernel in observation.kernels if kernel.module == target.version}
    source = there.sources.get(target.version)
    if kinds.difference(("", target.module)) or source not in (None, "", target.module):
        return True
    return source is None and any(kernel.headers and kernel.module != target.version for kernel in observation.kernels)


def installers_target(observation: Observation, policy: Policy, facts: HostFacts) -> Optional[Target]:
    """The driver of NVIDIA's installer that is to be there, None where none of it is."""
    if policy.state == "rolled_back":
        record = observation.record
        returns = record is not None and record.runfile and policy.roll_back_to in ("", record.version)
        return recorded_target(record) if record is not None and returns else None
    if policy.state == "absent" or not policy.comes_from.is_installer:
        return None
    target = target_of(policy, facts, observation.installed, {})
    return None if isinstance(target, Refusal) else target


def foreseen(observation: Observation, target: Target) -> Observation:
    """What is there once the driver before NVIDIA's installer's has gone, with its libraries and modules."""
    if not target.of_installer or not installer_runs(observation, target):
        return observation
    return replace(observation, installer=replace(observation.installer, user_space=""), kernels=tuple(replace(
        kernel, module="", license="", signer="", key="", trusted=True) for kernel in observation.kernels))


def settled(target: Target, observation: Observation) -> bool:
    """Whether the driver's packages are there, and none of another version is on its way; where NVIDIA's installer has
    brought it, whether nothing is to be built, or what builds it is there."""
    if target.of_installer and not target.leaves and not installer_runs(observation, target) and all(
            kernel.module == target.version for kernel in observation.kernels):
        return True
    coming = {name: observation.torn[name].versions[0]
              if name in observation.torn and observation.torn[name].versions else version
              for name, version in observation.unfinished.items()}
    return packages_settled(target, observation.installed) and all(
        catalogue.upstream(version) == target.version
        for version in catalogue.family(coming, target.packages.floating).values() if version)


def goes_down(
    installed: Mapping[str, str], wanted: Mapping[str, str], order: Callable[[str, str], int] = compare
) -> bool:
    """Whether a package gets an older version than it has; the package manager's order decides."""
    return any(name in installed and order(version, installed[name]) < 0 for name, version in wanted.items())


def key_text(host: Host, observation: Observation, origin: Origin, facts: HostFacts) -> str:
    """Text of the key that is ours to write; one in place is kept while the repository and the key are the same."""
    places = places_of(facts)
    if origin.key_text or observation.given_key:
        return origin.key_text or observation.given_key
    if not origin.key_url and not origin.key_file:
        return ""
    if origin.key_url and not key_needed(observation, origin, places):
        return observation.files.get(places.key) or ""
    return (manager_of(facts) or APT).read_key(host, origin.key_url or origin.key_file, origin.key_credentials)


def header_packages(observation: Observation, policy: Policy, facts: HostFacts) -> Dict[str, str]:
    """{package: the one version that will do, '' for any} of header packages that are missing: of every bootable
    kernel, and what follows updates.

    Of a held kernel its own alone: those of others may not come, nor what would bring them.
    """
    system = catalogue.system_of(facts.os_id, facts.os_version, facts.arch)
    if not policy.kernel_headers or system is None:
        return {}
    return catalogue.header_packages(
        system, [kernel.release for kernel in observation.kernels
                 if not kernel.headers and (not policy.kernel_hold or kernel.release == facts.kernel)],
        [kernel.release for kernel in observation.kernels], observation.installed, policy.kernel_hold)


def index_needed(observation: Observation, policy: Policy, facts: HostFacts) -> bool:
    """Whether the repository must be read to plan."""
    if not is_driven(policy, facts) or not policy.comes_from.has_index:
        return False
    if facts.immutable or not facts.gpus or (policy.from_repository and not origin_of(policy, facts).url):
        return False
    target = target_of(policy, facts, observation.installed, {}, observation.prebuilt)
    if isinstance(target, Refusal):
        return not policy.version
    if observation.torn or not settled(target, observation) or key_needed(
            observation, origin_of(policy, facts), places_of(facts)):
        return True
    if packages_missing(policy, facts, observation.installed):
        return True
    headless = [kernel.release for kernel in foreseen(observation, target).kernels if not kernel.headers and (
        (kernel.module != target.version and not target.is_precompiled)
        or (kernel.release in (facts.kernel, facts.boot_kernel) and unbuilt(
            observation.peers, policy, kernel.release)))]
    return bool(headless and header_packages(observation, policy, facts))


def key_needed(observation: Observation, origin: Origin, places: Places = APT_PLACES) -> bool:
    """Whether the key in place is not the one of this repository, or not that one alone."""
    if not origin.key_url and not origin.key_file:
        return False
    in_place = observation.files.get(places.key) or ""
    if not in_place or observation.files.get(places.sources) != places.sources_text(origin):
        return True
    if origin.key_file and in_place != observation.given_key:
        return True
    return bool(origin.fingerprint and keys.objection(in_place, origin.fingerprint))
