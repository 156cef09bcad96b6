# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there: packages, kernels, repository, hold; and, where packages must change, what the repository offers."""
from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, field, replace
from typing import AbstractSet, Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple
from urllib.parse import unquote_to_bytes

from ..core.errors import GpuOpsError
from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.refusal import Refusal
from ..hardware import parameters
from ..hardware.boot import BootState, boot_state
from ..packages import provenance, space, torn
from ..packages.apt import credentials, database, keys, running, sources
from ..packages.apt.credentials import AuthFile
from ..packages.apt.index import Index, Preference, index, read_key
from ..packages.apt.versions import compare
from ..packages.model import Repository, Simulation
from ..packages.space import Space
from ..packages.torn import Torn
from . import archive, catalogue, kernel_hold, prebuilt
from .files import AUTH_FILE, KEPT_SOURCES_FILE, OUR_FILES, PIN_FILE, SOURCES_FILE, pin_text, sources_text
from .kernels import Kernel, read_kernels
from .origin import KEY_FILE, Origin, origin_of
from .policy import Policy
from .prebuilt import KERNEL_METAPACKAGE, Prebuilt
from .preinstalled_parts import Parts, image_of_driver, read_parts
from .record import Record, is_archived, read
from .signing import SigningKey
from .signing_key import read_signing_key
from .target import SYSTEMS, Target, anchors, chosen, packages_settled, target_of

LISTS = "/var/lib/apt/lists"
LEFTOVERS = ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-smi", "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
             "/usr/lib/aarch64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1")
_QUOTED = "\\|{}[]<>\"^~_=!@#$%&*"
_KEPT_NAMES = re.compile(r"^(linux-(image|headers|modules)-(?!nvidia-)|dkms$|%s)" % "|".join(
    re.escape(name) + "$" for name in catalogue.OF_NVLINK5))


@dataclass(frozen=True)
class Offer:
    """What the repository has, read into a scratch directory.

    error:       why it could not be read, '' when it was.
    versions:    {package: versions} of the names that were asked for.
    key:         text of the repository's key, '' when it is not ours to write.
    transaction: what apt would do to reach the target, None when there is no target.
    unread:      other sources of this host that apt cannot read, in its words.
    space:       room for the transaction, None when there is none.
    unpacks:     {package: version} of those torn that have to be unpacked again before the transaction.
    lost:        those torn that the transaction does not replace, and that cannot be had in any version of theirs.
    returnable:  'name=version' of what the sources have of the driver that is there, and of the recorded one.
    superfluous: {package: version} of what only the newer driver brought, and can go without taking others along.
    modules:     {package of modules that come built: {version: what it depends on}}; None where nobody has looked.
    """

    error: str = ""
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


@dataclass(frozen=True)
class Observation:
    """What is there of the driver, whose it is, and what the repository has.

    installed:            {package: version} of the driver's family, kernels and headers.
    broken:               packages that dpkg has not finished.
    unfinished:           {package: version} of the driver's family among them, '' where dpkg knows none.
    torn:                 those of them that dpkg wants unpacked again, whoever brought them.
    interrupted:          whether dpkg itself was stopped in the middle.
    ours_unfinished:      whether a transaction of ours was stopped.
    kernels:              bootable kernels.
    boot:                 what boots next, and how that is known.
    files:                {path: text or None} of the files whose whole content is ours.
    foreign_sources:      other files that name the same repository.
    leftovers:            files of a driver that no package owns.
    installed_by_us:      packages that our transactions brought in.
    originals:            {path: text before us or None}.
    lists:                index files of our repository in apt's state.
    archives:             names of package files in apt's cache.
    signing_key:          the key that DKMS signs with.
    offer:                what the repository has; None when nothing needs to be known of it.
    removable:            those of installed_by_us that can go without taking others along; () unless they are to go.
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
    """

    installed: Mapping[str, str] = field(default_factory=dict)
    broken: Tuple[str, ...] = ()
    unfinished: Mapping[str, str] = field(default_factory=dict)
    torn: Mapping[str, Torn] = field(default_factory=dict)
    interrupted: bool = False
    ours_unfinished: bool = False
    kernels: Tuple[Kernel, ...] = ()
    boot: BootState = field(default_factory=BootState)
    files: Mapping[str, Optional[str]] = field(default_factory=dict)
    foreign_sources: Tuple[str, ...] = ()
    leftovers: Tuple[str, ...] = ()
    installed_by_us: Mapping[str, str] = field(default_factory=dict)
    originals: Mapping[str, Optional[str]] = field(default_factory=dict)
    lists: Tuple[str, ...] = ()
    archives: Tuple[str, ...] = ()
    signing_key: SigningKey = SigningKey()
    offer: Optional[Offer] = None
    removable: Tuple[str, ...] = ()
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

    @property
    def there(self) -> Dict[str, str]:
        """{package: version} of what is installed, or will be once dpkg has finished it."""
        return {**{name: version for name, version in self.unfinished.items() if version}, **self.installed}

    @property
    def prebuilt(self) -> Prebuilt:
        return Prebuilt(self.kernels, frozenset(self.installed_by_us),
                        self.offer.modules if self.offer and not self.offer.error else None, tuple(self.unfinished))

    def to_dict(self) -> Dict[str, Any]:
        """Without the room on disks and the date, which are others at each look and say nothing of what was planned."""
        told = asdict(self)
        del told["month"]
        if told["offer"]:
            del told["offer"]["space"]
        return told


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    """Read what the planner needs; the repository only when packages or headers are not as wanted."""
    packages = database.installed(host)
    watched = [name for name in packages if catalogue.FAMILY.match(name) or _KEPT_NAMES.match(name)
               or name in policy.extra_packages]
    if policy.kernel_hold:
        watched += [name for kind in prebuilt.follows(watched) for name in ["linux-" + kind] if name in packages]
    installed = {name: packages[name].version for name in watched if packages[name].installed}
    installed_by_us = provenance.installed_by_us(host, journal, "driver", packages)
    if policy.state == "absent":
        installed_by_us = {**prebuilt.followed(installed, installed_by_us, database.automatic(host)), **installed_by_us}
    origin = origin_of(policy, facts)
    broken = tuple(sorted(name for name, package in packages.items() if package.unfinished))
    observation = Observation(
        installed=installed,
        broken=broken,
        unfinished={name: packages[name].version for name in watched if packages[name].unfinished},
        torn=torn.observe(host, journal, packages),
        interrupted=database.interrupted(host),
        ours_unfinished=torn.stopped(journal, broken),
        kernels=read_kernels(host, journal, facts),
        boot=boot_state(host),
        files={path: host.read(path) for path in OUR_FILES},
        foreign_sources=sources.configured_in(host, origin.url, SOURCES_FILE),
        leftovers=_leftovers(host, {name: packages[name].version for name in watched if packages[name].there}),
        installed_by_us=installed_by_us,
        originals={original.path: None if original.content is None else original.content.decode("utf-8", "replace")
                   for original in journal.originals("driver") if original.path != AUTH_FILE},
        lists=_lists_of(host, origin.url) if origin.url else (),
        signing_key=read_signing_key(host, policy),
        held=database.held(packages, watched),
        auth=credentials.observe(host, journal, "driver", AUTH_FILE, origin.url,
                                 None if policy.state == "absent" else origin.credentials),
        loaded_parameters=_loaded_parameters(host, policy),
        set_elsewhere=_set_elsewhere(host),
        month=time.strftime("%Y-%m", time.gmtime()),
        given_key=_given_key(host, origin) if policy.state in ("present", "staged") else "",
        record=read(journal),
        kept=archive.kept(host),
        stores=archive.is_there(host),
        offered=host.exists(KEPT_SOURCES_FILE),
        brought_by=image_of_driver(host),
        parts=Parts() if policy.comes_from.installs else read_parts(host, policy, facts),
    )
    observation = replace(observation, kernel_hold=kernel_hold.wanted(
        policy, observation.there, observation.files, facts))
    if policy.state == "absent":
        removable = database.removable(host, packages, set(installed_by_us).difference(kernels_in_use(facts)))
        return replace(observation, removable=removable, held=database.held(packages, installed_by_us),
                       bindings=not removable or running.has_bindings(host))
    returns = policy.state == "rolled_back"
    record = observation.record
    if not (way_back_needed(observation, policy) if returns else index_needed(observation, policy, facts)):
        return observation
    followers = provenance.followers(host, journal, "driver")
    observation = replace(observation, archives=database.archives(host), bindings=running.has_bindings(host),
                          automatic=tuple(sorted(followers.intersection(watched))))
    offer = _read_way_back(host, observation, record, origin, followers) if returns and record else _read_offer(
        host, observation, policy, facts, origin, followers)
    return replace(observation, offer=offer)


def _loaded_parameters(host: Host, policy: Policy) -> Dict[str, str]:
    ours = parameters.parameters_in(host.read(parameters.PARAMETERS_FILE) or "")
    return parameters.loaded_parameters(host, sorted({*ours, *policy.module_parameters, parameters.COHERENT_MODE}))


def _set_elsewhere(host: Host) -> Dict[str, Dict[str, str]]:
    found: Dict[str, Dict[str, str]] = {}
    for path in parameters.configuration_files(host):
        if path != parameters.PARAMETERS_FILE:
            for name, value in parameters.parameters_in(host.read(path) or "").items():
                found.setdefault(name, {})[path] = value
    return found


def kernels_in_use(facts: HostFacts) -> FrozenSet[str]:
    """Packages of the kernels that run and boot next: they stay, with what they need."""
    return frozenset(beginning + release for release in (facts.kernel, facts.boot_kernel) if release
                     for beginning in ("linux-image-", "linux-image-unsigned-"))


def _lists_of(host: Host, url: str) -> Tuple[str, ...]:
    """Index files of the repository itself: those of one below it have the name of its directory before their own."""
    beginning = list_name(url)
    return tuple("%s/%s" % (LISTS, name) for name in host.list(LISTS)
                 if name.startswith(beginning) and "_" not in name[len(beginning):])


def list_name(url: str) -> str:
    """How apt names the index files of a repository (URItoFileName, apt-pkg/contrib/strutl.cc)."""
    bare = unquote_to_bytes(re.sub(r"^[a-z0-9+.-]+:(//)?(\[([^]]*)\])?", r"\3", url).rstrip("/") + "/")
    return "".join("_" if byte == ord("/") else chr(byte) if 0x20 < byte < 0x7f and chr(byte) not in _QUOTED
                   else "%%%02x" % byte for byte in bare)


def _leftovers(host: Host, there: Mapping[str, str]) -> Tuple[str, ...]:
    """Files of a driver that came without packages: an installer's own, or a copied library.

    there: packages with files on the host, those included that dpkg has unpacked and not configured yet.
    """
    if catalogue.family(there):
        return tuple(path for path in LEFTOVERS[:1] if host.exists(path))
    return tuple(path for path in LEFTOVERS if host.exists(path))


def _read_offer(
    host: Host, observation: Observation, policy: Policy, facts: HostFacts, origin: Origin, automatic: AbstractSet[str]
) -> Offer:
    key = ""
    try:
        key = _key_text(host, observation, origin)
        repositories = [Repository(origin.url, key, KEY_FILE, credentials=origin.credentials)] if origin.url else []
        with index(host, repositories, beside_system=True) as opened:
            offer = _offer(host, opened, observation, policy, facts, origin, key, automatic)
            return replace(offer, unread=opened.unread, space=space.observe(host) if offer.transaction else None)
    except GpuOpsError as error:
        return Offer(error=error.found, key=key)


def _offer(
    host: Host, opened: Index, observation: Observation, policy: Policy, facts: HostFacts, origin: Origin, key: str,
    automatic: AbstractSet[str]
) -> Offer:
    versions = opened.versions(anchors(policy, facts), origin.url)
    if not origin.url and not policy.exact:
        versions = preferred(versions, opened.preference(versions), observation.installed, policy.version)
    modules = _modules_offered(opened, observation, policy, facts, versions)
    there = replace(observation.prebuilt, offered=modules)
    target = target_of(policy, facts, observation.installed, versions, there)
    if not isinstance(target, Target):
        return Offer(versions=versions, key=key, modules=modules)
    headers = () if target.is_precompiled else header_packages(observation, policy, facts)
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
    return replace(offer, key=key, returnable=_returnable(opened, observation), modules=modules)


def _modules_offered(
    opened: Index, observation: Observation, policy: Policy, facts: HostFacts, versions: Mapping[str, List[str]]
) -> Optional[Dict[str, Dict[str, str]]]:
    """{package of modules: {version: what it depends on}} of what the sources have; None where there are none such."""
    wanted = chosen(policy, facts, observation.installed, versions)
    if isinstance(wanted, Refusal) or catalogue.PRECOMPILED not in catalogue.ways(wanted):
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
        bool(observation.torn or observation.broken) or not record.is_in_place(observation.installed)
        or bool(superfluous(observation, record)))


def recorded_target(record: Record) -> Target:
    """The recorded driver, package by package; whatever of it has another version than the driver's is floating."""
    return RecordedTarget(record.version, record.kernel_module, catalogue.PackageSet(
        "", tuple(sorted(record.packages)), (),
        frozenset(name for name, version in record.packages.items() if catalogue.upstream(version) != record.version)),
        prebuilt.kind_there(record.packages) or catalogue.DKMS, exact=record.packages)


@dataclass(frozen=True)
class RecordedTarget(Target):
    """exact: {package: version}; no other version of a package belongs to this driver."""

    exact: Mapping[str, str] = field(default_factory=dict)

    def package_version(self, name: str, versions: Mapping[str, Sequence[str]]) -> str:
        return self.exact.get(name, "")


def superfluous(observation: Observation, record: Record) -> Dict[str, str]:
    """{package: version} of what is there because of us and was not then. Headers stay, and what builds modules."""
    return {name: version for name, version in observation.installed_by_us.items()
            if name not in record.ours and name not in record.packages and not _KEPT_NAMES.match(name)}


def archives_at_hand(observation: Observation) -> Tuple[str, ...]:
    """Package files on the host, apt's own and ours."""
    return tuple(sorted({*observation.archives, *observation.kept}))


def _read_way_back(
    host: Host, observation: Observation, record: Record, origin: Origin, automatic: AbstractSet[str]
) -> Offer:
    """What apt would do to bring the recorded driver back; the repository is read only for what is not at hand."""
    at_hand = archives_at_hand(observation)
    lacking = [name for name, version in record.changed(observation.installed).items()
               if not is_archived(name, version, at_hand)]
    named = [Repository(record.url, record.files.get(KEY_FILE) or "", KEY_FILE,
                        credentials=origin.credentials if origin.url == record.url else None)]
    files = archive.index_at_hand(host, record.packages)
    offer, error = None, ""
    try:
        if not lacking or not record.url:
            offer = _offer_back(host, observation, record, [], files, automatic)
        # What the driver needs beside its own packages may have gone meanwhile, as by 'apt autoremove'
        if record.url and (offer is None or offer.transaction is not None and offer.transaction.problem):
            return _offer_back(host, observation, record, named, files, automatic)
    except GpuOpsError as unreadable:
        error = unreadable.found
    try:
        return replace(offer or _offer_back(host, observation, record, [], files, automatic), error=error)
    except GpuOpsError as unreadable:
        return Offer(error=error or unreadable.found)


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


def settled(target: Target, observation: Observation) -> bool:
    """Whether the driver's packages are there, and none of another version is on its way."""
    coming = {name: observation.torn[name].versions[0]
              if name in observation.torn and observation.torn[name].versions else version
              for name, version in observation.unfinished.items()}
    return packages_settled(target, observation.installed) and all(
        catalogue.upstream(version) == target.version
        for version in catalogue.family(coming, target.packages.floating).values() if version)


def goes_down(installed: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether a package gets an older version than it has; the package manager's order decides."""
    return any(name in installed and compare(version, installed[name]) < 0 for name, version in wanted.items())


def _given_key(host: Host, origin: Origin) -> str:
    """The key at a path on this host; one that cannot be read is told when the repository is."""
    if not origin.key_file:
        return ""
    try:
        return read_key(host, origin.key_file)
    except GpuOpsError:
        return ""


def _key_text(host: Host, observation: Observation, origin: Origin) -> str:
    """Text of the key that is ours to write; one in place is kept while the repository and the key are the same."""
    if origin.key_text or observation.given_key:
        return origin.key_text or observation.given_key
    if not origin.key_url and not origin.key_file:
        return ""
    if origin.key_url and not key_needed(observation, origin):
        return observation.files.get(KEY_FILE) or ""
    return read_key(host, origin.key_url or origin.key_file, origin.key_credentials)


def header_packages(observation: Observation, policy: Policy, facts: HostFacts) -> Tuple[str, ...]:
    """Header packages that are missing: of every bootable kernel, and the metapackage that follows their updates.

    Of a held kernel its own alone: those of others may not come, nor what would bring them.
    """
    if not policy.kernel_headers:
        return ()
    names = ["linux-headers-" + kernel.release for kernel in observation.kernels
             if not kernel.headers and (not policy.kernel_hold or kernel.release == facts.kernel)]
    for name in () if policy.kernel_hold else observation.installed:
        meta = KERNEL_METAPACKAGE.match(name)
        if meta and "linux-headers-" + meta.group(1) not in observation.installed:
            names.append("linux-headers-" + meta.group(1))
    return tuple(sorted(names))


def index_needed(observation: Observation, policy: Policy, facts: HostFacts) -> bool:
    """Whether the repository must be read to plan."""
    if facts.os_id not in SYSTEMS or not policy.comes_from.has_index:
        return False
    if facts.immutable or not facts.gpus or (policy.from_repository and not origin_of(policy, facts).url):
        return False
    target = target_of(policy, facts, observation.installed, {}, observation.prebuilt)
    if isinstance(target, Refusal):
        return not policy.version
    if observation.torn or not settled(target, observation) or key_needed(observation, origin_of(policy, facts)):
        return True
    if target.is_precompiled:
        return False
    return any(not kernel.headers and kernel.module != target.version for kernel in observation.kernels) and bool(
        header_packages(observation, policy, facts))


def key_needed(observation: Observation, origin: Origin) -> bool:
    """Whether the key in place is not the one of this repository, or not that one alone."""
    if not origin.key_url and not origin.key_file:
        return False
    in_place = observation.files.get(KEY_FILE) or ""
    if not in_place or observation.files.get(SOURCES_FILE) != sources_text(origin):
        return True
    if origin.key_file and in_place != observation.given_key:
        return True
    return bool(origin.fingerprint and keys.objection(in_place, origin.fingerprint))
