# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there of the modules beside the driver's: for which kernels they are built, and for which driver.

A module is of the driver that is there when both files are those that our own build left (BUILT of the driver's
memory), whatever the clock was. Where others have built it, its file is not older than the driver's module of that
kernel. What does not build for a kernel that nobody needs is remembered (FAILED), as the driver's own module is.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..hardware.boot import kernels, module_file, module_path, read_module
from ..hardware.peer_modules import (
    NV_PEER_MEM,
    PEER_MODULES,
    PEERMEM,
    offers_peer_memory,
    peermem_uses_rdma,
)
from ..packages.manager import PackageManager
from ..packages.managers import APT
from ..packages.model import Package
from .catalogue import system_of
from .kernels import Row, dkms_status, is_trusted, known_keys
from .policy import DMABUF, NO_RDMA, Policy
from .signing import SigningKey, asked_for
from .tables.peers import PEERS, Peer, packages_of

BUILT, FAILED = "peers_built", "peers_unbuilt"


@dataclass(frozen=True)
class Peers:
    """What is there of the modules that the policy names; nothing is read where it names none, and never did.

    built:       {kernel: those that are built for it and its driver, and that it would load}.
    failed:      {kernel: {module: version of the driver that it did not build with in an earlier run}}.
    registers:   kernels with an RDMA stack that nvidia-peermem can register with, where it was built for it.
    predecessor: what tells that nv_peer_mem is there, '' where it is not.
    loaded:      {loaded module: how often it is in use}.
    removable:   those of our packages that nobody wants any more and that can go without others.
    """

    built: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    failed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    registers: Tuple[str, ...] = ()
    predecessor: str = ""
    loaded: Mapping[str, int] = field(default_factory=dict)
    removable: Tuple[str, ...] = ()


def wanted_products(policy: Policy) -> Tuple[Peer, ...]:
    return tuple(peer for peer in PEERS if getattr(policy, peer.option))


def packages_wanted(policy: Policy, facts: HostFacts) -> Dict[Peer, Tuple[str, ...]]:
    """{product: its packages in the policy's source, () where that has none}."""
    system = system_of(facts.os_id, facts.os_version, facts.arch)
    return {peer: packages_of(peer, system, policy.comes_from.of_distribution) if system else ()
            for peer in wanted_products(policy)}


def packages_missing(policy: Policy, facts: HostFacts, installed: Mapping[str, str]) -> Tuple[str, ...]:
    return tuple(name for names in packages_wanted(policy, facts).values() for name in names if name not in installed)


def unbuilt(peers: Peers, policy: Policy, release: str) -> Tuple[str, ...]:
    """Modules of products that a kernel does not have, of the driver that it has."""
    return tuple(peer.module for peer in wanted_products(policy) if peer.module not in peers.built.get(release, ()))


def read_peers(
    host: Host, journal: Journal, policy: Policy, facts: HostFacts, releases: Sequence[str], key: SigningKey,
    packages: Mapping[str, Package], installed_by_us: Mapping[str, str], is_ours: bool,
    manager: PackageManager = APT
) -> Peers:
    """releases: kernels that can be booted. is_ours: whether an earlier run wrote PEERS_FILE."""
    products = wanted_products(policy)
    unwanted = sorted(name for peer in PEERS if peer not in products for names in peer.packages.values()
                      for name in names if name in installed_by_us)
    asks_rdma = policy.rdma not in (NO_RDMA, DMABUF)
    if policy.state in ("absent", "staged") or not (
            products or asks_rdma or unwanted or is_ours):
        return Peers()
    memory = journal.recall("driver")
    rows = dkms_status(host) if products else ()
    built = {release: tuple(peer.module for peer in products
                            if _is_built(host, memory, release, peer, rows, policy, facts, key))
             for release in releases}
    if asks_rdma:
        built = {release: names + ((PEERMEM,) if peermem_uses_rdma(host, release) else ())
                 for release, names in built.items()}
    return Peers(
        built=built,
        failed=memory.get(FAILED, {}),
        registers=tuple(each for each in releases if asks_rdma and offers_peer_memory(host, each, facts.arch)),
        predecessor=_predecessor(host, facts) if asks_rdma else "",
        loaded=_loaded(host),
        removable=manager.removable(host, packages, [name for name in unwanted if not packages[name].held]),
    )


def _is_built(
    host: Host, memory: Mapping[str, Any], release: str, peer: Peer, rows: Sequence[Row], policy: Policy,
    facts: HostFacts, key: SigningKey
) -> bool:
    """As DKMS and modinfo tell it. A distribution may bring a module that DKMS knows nothing of."""
    path = module_file(host, release, peer.module)
    known = [row for row in rows if row[0] == peer.dkms]
    if not path or (known and not any(row[2] == release and row[3].startswith("installed") for row in known)):
        return False
    module = read_module(host, path)
    if not module.license or not _is_of_driver(host, memory, release, peer.module, path):
        return False
    return not asked_for(policy, facts) or is_trusted(module, known_keys(host)) or (
        bool(module.key) and module.key == key.serial)


def _is_of_driver(host: Host, memory: Mapping[str, Any], release: str, module: str, path: str) -> bool:
    driver = module_path(host, release)
    made, drivers = host.stat(path), host.stat(driver) if driver else None
    if made is None or drivers is None:
        return False
    noted = memory.get(BUILT, {}).get(release, {}).get(module)
    return made.st_mtime_ns >= drivers.st_mtime_ns if noted is None else noted == stamps(host, path, driver)


def stamps(host: Host, *paths: str) -> List[int]:
    """What tells these files from others of their names."""
    return [number for _inode, size, written in host.stamps(*paths) for number in (size, written)]


def remember_built(host: Host, journal: Journal, release: str, module: str) -> None:
    files = [module_file(host, release, module), module_path(host, release)]
    _remember(host, journal, BUILT, release, module, stamps(host, *(path for path in files if path)))


def remember_failed(host: Host, journal: Journal, release: str, module: str, driver: str) -> None:
    _remember(host, journal, FAILED, release, module, driver)


def _remember(host: Host, journal: Journal, note: str, release: str, module: str, value: Any) -> None:
    """Notes of kernels that are gone go too."""
    memory, there = journal.recall("driver"), kernels(host)
    known: Dict[str, Dict[str, Any]] = {name: each for name, each in memory.get(note, {}).items() if name in there}
    known[release] = {**known.get(release, {}), module: value}
    journal.remember("driver", dict(memory, **{note: known}))


def _predecessor(host: Host, facts: HostFacts) -> str:
    if host.exists("/sys/module/" + NV_PEER_MEM):
        return "nv_peer_mem is loaded"
    path = module_file(host, facts.boot_kernel or facts.kernel, NV_PEER_MEM)
    return "%s is there" % path if path else ""


def _loaded(host: Host) -> Dict[str, int]:
    found = {}
    for name in PEER_MODULES:
        count = host.read("/sys/module/%s/refcnt" % name)
        if count is not None:
            found[name] = int(count) if count.strip().isdigit() else 1
    return found
