# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keys that rpm trusts: packages 'gpg-pubkey' of its database, one for each primary key that was imported.

dnf and zypper would import a repository's key themselves when a transaction needs it. Here it is a step of its own,
whose key has been checked by its fingerprint: what is imported is what the plan shows, and can be taken back.
"""
from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping, Tuple

from ...core.errors import GpuOpsError
from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import Step
from ...core.steps import Executor
from ..apt import keys
from .database import directory, own

IMPORT = "rpm.import_key"
FORGET = "rpm.forget_key"
# Fingerprints of keys of the database that we brought, {capability: fingerprints}
MEMORY = "rpm_keys"
_KEYS = re.compile(r"(?m)^(gpg-pubkey-\S+)\n(-----BEGIN PGP.*?^-----END [^\n]*)", re.S)


def trusted(host: Host) -> Dict[str, Tuple[str, ...]]:
    """{name of a key in the database: fingerprints of its primary keys, none where it cannot be read}."""
    if not directory(host):
        return {}
    told = host.run(["rpm", *own(host), "-q", "--qf", "%{NAME}-%{VERSION}-%{RELEASE}\\n%{DESCRIPTION}\\n",
                     "gpg-pubkey"], check=False).stdout
    return {name: _fingerprints(armoured) for name, armoured in _KEYS.findall(told)}


def has_signed(host: Host, path: str) -> bool:
    """Whether a key of the database has signed a package file that is whole: what dnf and zypper ask of a package that
    they fetch, and dnf of no file (dnf/rpm/miscutils.py, checkSig, in rpm's words)."""
    return host.run(["rpmkeys", *own(host), "--checksig", "--define=_pkgverify_level signature",
                     "--define=_pkgverify_flags 0x0", host.path(path)], check=False, timeout=600).rc == 0


def import_steps(
    capability: str, path: str, armoured: str, there: Mapping[str, Tuple[str, ...]]
) -> List[Step]:
    """Pure: import the key at a path of the host unless all of it is there; armoured: its text, as it was checked."""
    wanted = keys.read(armoured.encode()).fingerprints
    known = {fingerprint for fingerprints in there.values() for fingerprint in fingerprints}
    if known.issuperset(wanted):
        return []
    return [Step(
        capability=capability,
        action=IMPORT,
        subject=path,
        why="rpm takes packages of this repository alone that this key has signed.",
        change={"before": None, "after": ", ".join(wanted)},
    )]


def forget_steps(capability: str, names: Iterable[str]) -> List[Step]:
    """Pure: take keys of ours out of the database."""
    return [Step(
        capability=capability,
        action=FORGET,
        subject=name,
        why="This key came with our repository.",
        change={"before": "trusted", "after": None},
    ) for name in sorted(names)]


def ours(journal: Journal, capability: str, there: Mapping[str, Tuple[str, ...]]) -> Tuple[str, ...]:
    """Names of keys in the database that a capability brought, and no other one relies on."""
    memory = journal.recall(MEMORY)
    others = {each for name, brought in memory.items() if name != capability for each in brought}
    mine = set(memory.get(capability, ())).difference(others)
    return tuple(sorted(name for name, fingerprints in there.items() if fingerprints and mine.issuperset(fingerprints)))


def import_key(host: Host, journal: Journal, step: Step) -> None:
    """Executor of IMPORT. Raises GpuOpsError where the file is not the key that was planned."""
    data = host.read_bytes(step.subject)
    there = ", ".join(keys.read(data).fingerprints) if data else "no file %s" % step.subject
    if there != step.change["after"]:
        raise GpuOpsError(
            "packages.key_changed",
            found=there, wanted="the key %s in %s" % (step.change["after"], step.subject),
            remedy="make a new plan")
    known = {each for fingerprints in trusted(host).values() for each in fingerprints}
    memory = journal.recall(MEMORY)
    # First, so that a key is ours also when this process is killed right after it came
    came = set(step.change["after"].split(", ")).difference(known)
    journal.remember(MEMORY, {**memory, step.capability: sorted({*memory.get(step.capability, ()), *came})})
    host.run(["rpm", *own(host), "--import", host.path(step.subject)])


def forget_key(host: Host, journal: Journal, step: Step) -> None:
    """Executor of FORGET."""
    fingerprints = trusted(host).get(step.subject)
    if fingerprints is not None:
        host.run(["rpm", *own(host), "-e", "--allmatches", step.subject])
    memory = journal.recall(MEMORY)
    left = [each for each in memory.get(step.capability, ()) if each not in (fingerprints or ())]
    journal.remember(MEMORY, {**memory, step.capability: left})


def _fingerprints(armoured: str) -> Tuple[str, ...]:
    try:
        return keys.read(armoured.encode()).fingerprints
    except GpuOpsError:
        return ()


EXECUTORS: Dict[str, Executor] = {IMPORT: import_key, FORGET: forget_key}
