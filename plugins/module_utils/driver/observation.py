# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there: packages, kernels, repository, lock; and, where packages must change, what the repository offers."""
from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple
from urllib.parse import quote

from ..core.errors import GpuOpsError
from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.steps import PACKAGES_INSTALL
from ..hardware.boot import BootState, boot_state
from ..packages import provenance, space
from ..packages.apt import credentials, database, keys, running
from ..packages.apt.credentials import AuthFile
from ..packages.apt.index import Index, index, read_key
from ..packages.apt.versions import compare
from ..packages.model import Repository, Simulation
from ..packages.space import Space
from . import catalogue
from .catalogue import Impossible
from .files import AUTH_FILE, OUR_FILES, PIN_FILE, SOURCES_FILE, pin_text, sources_text
from .kernels import Kernel, read_kernels, signing_key_enrolled
from .origin import KEY_FILE, Origin, origin_of
from .policy import DISTRIBUTION, Policy
from .target import SYSTEMS, Target, anchors, packages_settled, target_of

ARCHIVES = "/var/cache/apt/archives"
LISTS = "/var/lib/apt/lists"
LEFTOVERS = ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-smi", "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
             "/usr/lib/aarch64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1")
_KERNEL_METAPACKAGE = re.compile(r"^linux-image-(?!\d|unsigned)(.+?)(?<!-dbg)$")
# What apt takes for 'no' (apt-pkg/contrib/strutl.cc, StringToBool)
_DISABLED = re.compile(r"^Enabled:\s*(no|false|without|off|disable|0)\s*$", re.MULTILINE | re.IGNORECASE)
_KEPT_NAMES = re.compile(r"^(linux-(image|headers|modules)-|dkms$|%s)" % "|".join(
    re.escape(name) + "$" for name in catalogue.OF_NVLINK5))


@dataclass(frozen=True)
class Offer:
    """What the repository has, read into a scratch directory.

    error:    why it could not be read, '' when it was.
    versions: {package: versions} of the names that were asked for.
    key:      text of the repository's key, '' when it is not ours to write.
    transaction: what apt would do to reach the target, None when there is no target.
    unread:   other sources of this host that apt cannot read, in its words.
    space:    room for the transaction, None when there is none.
    """

    error: str = ""
    versions: Mapping[str, List[str]] = field(default_factory=dict)
    key: str = ""
    transaction: Optional[Simulation] = None
    unread: Tuple[str, ...] = ()
    space: Optional[Space] = None


@dataclass(frozen=True)
class Observation:
    """
    installed:       {package: version} of the driver's family, kernels and headers.
    broken:          packages that dpkg has not finished.
    interrupted:     whether dpkg itself was stopped in the middle.
    ours_unfinished: whether a transaction of ours was stopped.
    kernels:         bootable kernels.
    boot:            what boots next, and how that is known.
    files:           {path: text or None} of the files whose whole content is ours.
    foreign_sources: other files that name the same repository.
    leftovers:       files of a driver that no package owns.
    brought:         packages that our transactions brought in.
    originals:       {path: text before us or None}.
    lists:           index files of our repository in apt's state.
    archives:        names of package files in apt's cache.
    signing_key_enrolled: whether the key that DKMS signs with is known to the firmware.
    offer:           what the repository has; None when nothing needs to be known of it.
    removable:       those of brought that can go without taking others along; () unless they are to go.
    held:            {package: version} of those of the family, kernels and headers that somebody holds.
    auth:            our file of credentials, its password masked.
    given_key:       the key that the policy names by a path on this host, as it will be written; '' otherwise.
    bindings:        whether ansible.builtin.apt finds python3-apt here; only asked when packages are to change.
    """

    installed: Mapping[str, str] = field(default_factory=dict)
    broken: Tuple[str, ...] = ()
    interrupted: bool = False
    ours_unfinished: bool = False
    kernels: Tuple[Kernel, ...] = ()
    boot: BootState = field(default_factory=BootState)
    files: Mapping[str, Optional[str]] = field(default_factory=dict)
    foreign_sources: Tuple[str, ...] = ()
    leftovers: Tuple[str, ...] = ()
    brought: Mapping[str, str] = field(default_factory=dict)
    originals: Mapping[str, Optional[str]] = field(default_factory=dict)
    lists: Tuple[str, ...] = ()
    archives: Tuple[str, ...] = ()
    signing_key_enrolled: bool = False
    offer: Optional[Offer] = None
    removable: Tuple[str, ...] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    auth: AuthFile = AuthFile(current=True)
    given_key: str = ""
    bindings: bool = True

    def to_dict(self) -> Dict[str, Any]:
        """Without the room on disks, which is another one at each look and says nothing of what was planned."""
        told = asdict(self)
        if told["offer"]:
            del told["offer"]["space"]
        return told


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    """Read what the planner needs; the repository only when packages or headers are not as wanted."""
    packages = database.installed(host)
    watched = [name for name in packages if catalogue.FAMILY.match(name) or _KEPT_NAMES.match(name)
               or name in policy.extra_packages]
    installed = {name: packages[name].version for name in watched if packages[name].installed}
    brought = provenance.brought(host, journal, "driver", packages)
    origin = origin_of(policy, facts)
    seen = Observation(
        installed=installed,
        # A trigger that waits (of libc-bin, say) is no fault of its package: the next transaction sees to it
        broken=tuple(sorted(name for name, package in packages.items()
                            if package.unfinished and not package.state.startswith("triggers-"))),
        interrupted=any(name.isdigit() for name in host.list("/var/lib/dpkg/updates")),
        ours_unfinished=any(event["step"]["action"] == PACKAGES_INSTALL for event in journal.unfinished("driver")),
        kernels=read_kernels(host, journal, facts),
        boot=boot_state(host),
        files={path: host.read(path) for path in OUR_FILES},
        foreign_sources=_foreign_sources(host, origin.url),
        leftovers=_leftovers(host, {name: packages[name].version for name in watched if packages[name].there}),
        brought=brought,
        originals={original.path: None if original.content is None else original.content.decode("utf-8", "replace")
                   for original in journal.originals("driver") if original.path != AUTH_FILE},
        lists=tuple(host.glob("%s/%s*" % (LISTS, list_name(origin.url)))) if origin.url else (),
        signing_key_enrolled=facts.secure_boot and signing_key_enrolled(host),
        held=database.held(packages, watched),
        auth=credentials.observe(host, journal, "driver", AUTH_FILE, origin.url,
                                 None if policy.state == "absent" else origin.credentials),
        given_key=_given_key(host, origin) if policy.state != "absent" else "",
    )
    if policy.state == "absent":
        removable = database.removable(host, packages, brought)
        return replace(seen, removable=removable, held=database.held(packages, brought),
                       bindings=not removable or running.has_bindings(host))
    if not index_needed(seen, policy, facts):
        return seen
    archives = tuple(name for name in host.list(ARCHIVES) if name.endswith(".deb"))
    return replace(seen, offer=_read_offer(host, seen, policy, facts, origin), archives=archives,
                   bindings=running.has_bindings(host))


def list_name(url: str) -> str:
    """How apt names the index files of a repository."""
    bare = url.split("://", 1)[-1].rstrip("/") if "://" in url else url
    return quote(bare.replace("_", "%5f"), safe="/%:@.+~,-").replace("/", "_") + "_"


def _foreign_sources(host: Host, url: str) -> Tuple[str, ...]:
    """Files other than ours in which apt finds the repository: it refuses one repository with two keys.

    It reads files of two endings alone (sources.list(5)): '.save' and '.bak', which an upgrade of the release or
    'apt modernize-sources' leave, are none of them.
    """
    if not url:
        return ()
    bare = url.rstrip("/")
    files = ["/etc/apt/sources.list"] + ["/etc/apt/sources.list.d/" + name
                                         for name in host.list("/etc/apt/sources.list.d")
                                         if name.endswith((".list", ".sources"))]
    return tuple(path for path in files if path != SOURCES_FILE and _names_url(host.read(path) or "", bare))


def _names_url(text: str, bare: str) -> bool:
    """Whether an entry names it; a stanza of a deb822 file may be switched off."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    stanzas = re.split(r"\n[ \t]*\n", "\n".join(lines))
    return any(word.rstrip("/") == bare for stanza in stanzas if not _DISABLED.search(stanza)
               for line in stanza.splitlines() for word in line.split("#", 1)[0].split())


def _leftovers(host: Host, there: Mapping[str, str]) -> Tuple[str, ...]:
    """Files of a driver that came without packages: an installer's own, or a copied library.

    there: packages with files on the host, those included that dpkg has unpacked and not configured yet.
    """
    if catalogue.family(there):
        return tuple(path for path in LEFTOVERS[:1] if host.exists(path))
    return tuple(path for path in LEFTOVERS if host.exists(path))


def _read_offer(host: Host, seen: Observation, policy: Policy, facts: HostFacts, origin: Origin) -> Offer:
    key = ""
    try:
        key = _key_text(host, seen, origin)
        repositories = [Repository(origin.url, key, KEY_FILE, credentials=origin.credentials)] if origin.url else []
        with index(host, repositories, beside_system=True) as opened:
            offer = _offer(opened, seen, policy, facts, origin, key)
            return replace(offer, unread=opened.unread, space=space.observe(host) if offer.transaction else None)
    except GpuOpsError as error:
        return Offer(error=error.found, key=key)


def _offer(opened: Index, seen: Observation, policy: Policy, facts: HostFacts, origin: Origin, key: str) -> Offer:
    versions = opened.versions(anchors(policy, facts), origin.url)
    target = target_of(policy, facts, seen.installed, versions)
    if not isinstance(target, Target):
        return Offer(versions=versions, key=key)
    headers = header_packages(seen, policy, facts)
    versions.update(opened.versions(target.packages.required + target.packages.optional, origin.url))
    versions.update(opened.versions(headers))
    if not all(target.package_version(name, versions) for name in target.packages.required):
        return Offer(versions=versions, key=key)
    request = requested(target, seen, versions, headers)
    if not request:
        return Offer(versions=versions, key=key)
    return Offer(versions=versions, key=key, transaction=_simulated(opened, seen, target, request))


def requested(
    target: Target, seen: Observation, versions: Mapping[str, List[str]], headers: Tuple[str, ...]
) -> Dict[str, str]:
    """{package: version} to ask apt for: the driver where it is not as wanted, and headers that are missing."""
    driver = {} if packages_settled(target, seen.installed) else target.request(versions)
    return {**driver, **{name: versions[name][0] for name in headers if versions[name]}}


def _simulated(opened: Index, seen: Observation, target: Target, request: Mapping[str, str]) -> Simulation:
    """The transaction as apt will do it.

    The pin of the new version tells which versions the rest of the family has to have. It is written once they are
    there, and that of the old version would have apt keep them: so they are asked for by name.
    """
    opened.prefer(pin_text(target.version))
    draft = opened.simulate(request, goes_down(seen.installed, request))
    if draft.problem:
        return draft
    family = {name: version for name, version in draft.installs.items()
              if catalogue.FAMILY.match(name) and catalogue.upstream(version) == target.version}
    if not packages_settled(target, seen.installed):
        # An earlier transaction may have stopped half way: apt would move what it has brought to the newest version
        family.update((name, version) for name, version in seen.installed.items()
                      if catalogue.FAMILY.match(name) and catalogue.upstream(version) == target.version
                      and name not in draft.removes)
    whole = {**family, **request}
    opened.prefer(seen.files.get(PIN_FILE) or "")
    followers = {name for name in set(family).difference(request) if name not in seen.installed} \
        | opened.automatic().intersection(family)
    return replace(opened.simulate(whole, goes_down(seen.installed, whole)), named=tuple(sorted(followers)))


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


def _key_text(host: Host, seen: Observation, origin: Origin) -> str:
    """Text of the key that is ours to write; one in place is kept while the repository and the key are the same."""
    if origin.key_text or seen.given_key:
        return origin.key_text or seen.given_key
    if not origin.key_url and not origin.key_file:
        return ""
    if origin.key_url and not key_needed(seen, origin):
        return seen.files.get(KEY_FILE) or ""
    return read_key(host, origin.key_url or origin.key_file, origin.key_credentials)


def header_packages(seen: Observation, policy: Policy, facts: HostFacts) -> Tuple[str, ...]:
    """Header packages that are missing: of every bootable kernel, and the metapackage that follows updates."""
    if not policy.kernel_headers:
        return ()
    names = ["linux-headers-" + kernel.release for kernel in seen.kernels if not kernel.headers]
    for name in seen.installed:
        meta = _KERNEL_METAPACKAGE.match(name)
        if meta and "linux-headers-" + meta.group(1) not in seen.installed:
            names.append("linux-headers-" + meta.group(1))
    return tuple(sorted(names))


def index_needed(seen: Observation, policy: Policy, facts: HostFacts) -> bool:
    """Whether the repository must be read to plan."""
    if facts.os_id not in SYSTEMS or policy.source != DISTRIBUTION and not policy.from_repository:
        return False
    if facts.immutable or not facts.gpus or (policy.from_repository and not origin_of(policy, facts).url):
        return False
    target = target_of(policy, facts, seen.installed, {})
    if isinstance(target, Impossible):
        return not policy.version
    if not packages_settled(target, seen.installed) or key_needed(seen, origin_of(policy, facts)):
        return True
    return any(not kernel.headers and kernel.module != target.version for kernel in seen.kernels) and bool(
        header_packages(seen, policy, facts))


def key_needed(seen: Observation, origin: Origin) -> bool:
    """Whether the key in place is not the one of this repository, or not that one alone."""
    if not origin.key_url and not origin.key_file:
        return False
    in_place = seen.files.get(KEY_FILE) or ""
    if not in_place or seen.files.get(SOURCES_FILE) != sources_text(origin):
        return True
    if origin.key_file and in_place != seen.given_key:
        return True
    return bool(origin.fingerprint and keys.objection(in_place, origin.fingerprint))
