# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there: packages, kernels, repository, lock; and, where packages must change, what the repository offers."""
from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple
from urllib.parse import quote

from ..core.apt import Index, Repository, Simulation, index, read_key, removable
from ..core.errors import GpuOpsError
from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.steps import PACKAGES_INSTALL
from ..hardware.boot import BootState, boot_state
from . import catalogue
from .catalogue import Impossible
from .files import OUR_FILES, PIN_FILE, SOURCES_FILE, pin_text, sources_text
from .kernels import Kernel, read_kernels, signing_key_enrolled
from .origin import KEY_FILE, Origin, origin_of
from .policy import DISTRIBUTION, Policy
from .target import SYSTEMS, Target, anchors, packages_settled, target_of

ARCHIVES = "/var/cache/apt/archives"
LISTS = "/var/lib/apt/lists"
LEFTOVERS = ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-smi", "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
             "/usr/lib/aarch64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1")
_KERNEL_METAPACKAGE = re.compile(r"^linux-image-(?!\d|unsigned)(.+?)(?<!-dbg)$")
_KEPT_NAMES = re.compile(r"^(linux-(image|headers|modules)-|dkms$)")


@dataclass(frozen=True)
class Offer:
    """What the repository has, read into a scratch directory.

    error:    why it could not be read, '' when it was.
    versions: {package: versions} of the names that were asked for.
    key:      text of the repository's key, '' when it is not ours to write.
    transaction: what apt would do to reach the target, None when there is no target.
    """

    error: str = ""
    versions: Mapping[str, List[str]] = field(default_factory=dict)
    key: str = ""
    transaction: Optional[Simulation] = None


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

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    """Read what the planner needs; the repository only when packages or headers are not as wanted."""
    packages = _packages(host)
    installed = {name: version for name, (state, version) in packages.items()
                 if state == "ii" and (catalogue.FAMILY.match(name) or _KEPT_NAMES.match(name))}
    brought = _brought(journal, packages)
    origin = origin_of(policy, facts)
    seen = Observation(
        installed=installed,
        broken=tuple(sorted(name for name, (state, _version) in packages.items() if state[1:2] in "UFWtH")),
        interrupted=any(name.isdigit() for name in host.list("/var/lib/dpkg/updates")),
        ours_unfinished=any(event["step"]["action"] == PACKAGES_INSTALL for event in journal.unfinished("driver")),
        kernels=read_kernels(host, journal, facts),
        boot=boot_state(host),
        files={path: host.read(path) for path in OUR_FILES},
        foreign_sources=_foreign_sources(host, origin.url),
        leftovers=_leftovers(host, installed),
        brought=brought,
        originals={original.path: None if original.content is None else original.content.decode("utf-8", "replace")
                   for original in journal.originals("driver")},
        lists=tuple(host.glob("%s/%s*" % (LISTS, list_name(origin.url)))) if origin.url else (),
        signing_key_enrolled=facts.secure_boot and signing_key_enrolled(host),
    )
    if policy.state == "absent":
        # apt need not be asked about packages that never came to work: nothing can depend on them.
        broken = tuple(name for name in seen.broken if name in brought)
        return replace(seen, removable=removable(host, brought) + broken)
    if not index_needed(seen, policy, facts):
        return seen
    archives = tuple(name for name in host.list(ARCHIVES) if name.endswith(".deb"))
    return replace(seen, offer=_read_offer(host, seen, policy, facts, origin), archives=archives)


def _brought(journal: Journal, packages: Mapping[str, Tuple[str, str]]) -> Dict[str, str]:
    """Packages that our transactions brought in, those of a transaction that did not end well included."""
    names = set(journal.packages("driver"))
    for event in journal.unfinished("driver"):
        if event["step"]["action"] == PACKAGES_INSTALL:
            names.update(name for name in packages if name not in event["packages_before"])
    return {name: packages[name][1] for name in sorted(names) if packages.get(name, ("", ""))[0][1:2] not in ("", "n")}


def list_name(url: str) -> str:
    """How apt names the index files of a repository."""
    bare = url.split("://", 1)[-1].rstrip("/") if "://" in url else url
    return quote(bare.replace("_", "%5f"), safe="/%:@.+~,-").replace("/", "_") + "_"


def _packages(host: Host) -> Dict[str, Tuple[str, str]]:
    """{package: (dpkg's two-letter state, version)}; empty where there is no dpkg."""
    done = host.run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}\t${Package}\t${Version}\n"], check=False)
    packages = {}
    for line in done.stdout.splitlines():
        state, name, version = line.split("\t")
        packages[name] = (state[:2], version)
    return packages


def _foreign_sources(host: Host, url: str) -> Tuple[str, ...]:
    """Files other than ours that name the repository: apt refuses one repository with two keys."""
    if not url:
        return ()
    bare = url.rstrip("/")
    files = ["/etc/apt/sources.list"] + ["/etc/apt/sources.list.d/" + name
                                         for name in host.list("/etc/apt/sources.list.d")]
    return tuple(path for path in files if path != SOURCES_FILE and _names_url(host.read(path) or "", bare))


def _names_url(text: str, bare: str) -> bool:
    for line in text.splitlines():
        words = line.split("#", 1)[0].split()
        if any(word.rstrip("/") == bare for word in words):
            return True
    return False


def _leftovers(host: Host, installed: Mapping[str, str]) -> Tuple[str, ...]:
    """Files of a driver that came without packages: an installer's own, or a copied library."""
    if catalogue.family(installed):
        return tuple(path for path in LEFTOVERS[:1] if host.exists(path))
    return tuple(path for path in LEFTOVERS if host.exists(path))


def _read_offer(host: Host, seen: Observation, policy: Policy, facts: HostFacts, origin: Origin) -> Offer:
    key = ""
    try:
        key = _key_text(host, seen, origin)
        repositories = [Repository(origin.url, key, origin.key_path)] if origin.url else []
        with index(host, repositories, beside_system=True, leave_out=(SOURCES_FILE, PIN_FILE)) as opened:
            return _offer(opened, seen, policy, facts, origin, key)
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
    opened.prefer(pin_text(target.version))
    words = sorted(target.words(versions) + [name for name in headers if versions[name]])
    return Offer(versions=versions, key=key, transaction=opened.simulate(words))


def _key_text(host: Host, seen: Observation, origin: Origin) -> str:
    """Text of the key that is ours to write; the one in place is kept while the repository is the same."""
    if origin.key_text or not origin.key_url:
        return origin.key_text
    in_place = seen.files.get(KEY_FILE)
    if in_place and seen.files.get(SOURCES_FILE) == sources_text(origin, KEY_FILE):
        return in_place
    return read_key(host, origin.key_url)


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
    if not packages_settled(target, seen.installed) or _key_needed(seen, policy, facts):
        return True
    return any(not kernel.headers and kernel.module != target.version for kernel in seen.kernels) and bool(
        header_packages(seen, policy, facts))


def _key_needed(seen: Observation, policy: Policy, facts: HostFacts) -> bool:
    origin = origin_of(policy, facts)
    if not origin.key_url:
        return False
    return not seen.files.get(KEY_FILE) or seen.files.get(SOURCES_FILE) != sources_text(origin, KEY_FILE)
