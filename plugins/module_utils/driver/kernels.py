# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Installed kernels: which can be booted, which have headers, which driver module lies there, who signed it.

Modules that do not build for an old kernel are remembered (NOTE of the driver's memory): such a kernel is no reason to
build, and to fail, again and again.
"""
from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..hardware.boot import Module, installed_module, kernels
from ..hardware.secure_boot import firmware_keys

NOTE = "unbuilt"
# The kernel puts an organization before the name where the name does not begin with it (Linux: x509_fabricate_name())
_KEYRING = re.compile(r"\basymmetri (?:.+: )??((?:(?!: ).)+): [0-9a-f]+: ")
# What modinfo calls a signer is who issued the certificate, and on the keyring is whose it is. Where a distribution's
# kernels are not built with a certificate of its own issue: {issuer: certificate} (SUSE's and openSUSE's, as their
# kernels load them and their shim has the issuers in its list)
_ISSUED: Mapping[str, str] = {
    "SUSE Linux Enterprise Secure Boot CA": "SUSE Linux Enterprise Secure Boot Signkey",
    "openSUSE Secure Boot CA": "openSUSE Secure Boot Signkey",
}


@dataclass(frozen=True)
class Kernel:
    """A kernel that can boot, and the driver's module for it.

    release: as uname prints it.
    headers: whether modules can be built for it.
    module:  version of the driver's module for it, '' if none.
    license: licence of that module ('Dual MIT/GPL' is the open one).
    signer:  who signed the module, '' if nobody.
    trusted: whether the kernel takes that signature; without Secure Boot it asks for none.
    failed:  version of the driver whose module did not build for it in an earlier run, '' if none.
    key:     serial number of the key that signed the module, as Module.key has it.
    """

    release: str
    headers: bool = False
    module: str = ""
    license: str = ""
    signer: str = ""
    trusted: bool = True
    failed: str = ""
    key: str = ""

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


def read_kernels(host: Host, journal: Journal, facts: HostFacts) -> Tuple[Kernel, ...]:
    """Kernels that can be booted, oldest first, and the running one if it is not among them and has its modules.

    What others left or built in its directory is not the kernel's own: that is below 'kernel'.
    """
    releases = kernels(host)
    if facts.kernel not in releases and host.is_dir("/lib/modules/%s/kernel" % facts.kernel):
        releases += (facts.kernel,)
    failed = journal.recall("driver").get(NOTE, {})
    modules = {release: installed_module(host, release) for release in releases}
    signed = facts.secure_boot and any(module.signer for module in modules.values())
    known = known_keys(host) if signed else None
    return tuple(Kernel(
        release, host.exists("/lib/modules/%s/build/Makefile" % release), module.version, module.license,
        module.signer, not (facts.secure_boot and module.version) or is_trusted(module, known),
        failed.get(release, ""), module.key) for release, module in modules.items())


def remember_failure(host: Host, journal: Journal, release: str, version: str) -> None:
    """Note that a version's module does not build for a kernel; notes of kernels that are gone go too."""
    memory = journal.recall("driver")
    known = {name: value for name, value in memory.get(NOTE, {}).items() if name in kernels(host)}
    journal.remember("driver", dict(memory, **{NOTE: dict(known, **{release: version})}))


# signatures


@dataclass(frozen=True)
class KnownKeys:
    """The keys whose signatures the kernel takes.

    enrolled: {serial number as Module.key has it: common name} of the keys that the firmware has.
    built_in: names of the keys on the kernel's keyrings.
    """

    enrolled: Mapping[str, str]
    built_in: Tuple[str, ...]


def known_keys(host: Host) -> Optional[KnownKeys]:
    """Keys whose signatures the kernel takes; None where the firmware tells none: nothing tells who may sign then."""
    firmware = firmware_keys(host)
    return KnownKeys({each.serial: each.subject for each in firmware.enrolled},
                     tuple(_KEYRING.findall(host.read("/proc/keys") or ""))) if firmware.readable else None


def is_trusted(module: Module, known: Optional[KnownKeys]) -> bool:
    """Whether a key that the firmware or the kernel knows signed a module; where nothing tells, any signature will do.

    Keys that DKMS makes are all called the same, so that of an enrolled key the serial number counts. Keys that the
    kernel was built with are known by name.
    """
    if not module.signer or known is None:
        return bool(module.signer)
    name = _ISSUED.get(module.signer, module.signer)
    return module.key in known.enrolled or (name in known.built_in and name not in known.enrolled.values())


# DKMS

Row = Tuple[str, str, str, str]


def dkms_status(host: Host) -> Tuple[Row, ...]:
    return parse_status(host.run(["dkms", "status"], check=False).stdout)


def dkms_name(host: Host, rows: Sequence[Row], version: str) -> str:
    """Name under which DKMS knows a driver ('nvidia', 'nvidia-open', 'nvidia-current' ...), '' if it does not.

    It lists what was not removed from its tree, too, when the source is gone.
    """
    names = [name for name, known, _kernel, _state in rows if known == version and name.startswith("nvidia")]
    sources = [name for name in names if host.exists("/usr/src/%s-%s/dkms.conf" % (name, version))]
    return next(iter(sources + names), "")


def dkms_has_built(rows: Sequence[Row], name: str, version: str, release: str) -> bool:
    """Whether DKMS takes the driver for built for a kernel, whatever its files are: it would not build it again."""
    return any(row[:3] == (name, version, release) for row in rows)


def parse_status(text: str) -> Tuple[Row, ...]:
    """(name, version, kernel or '', state) of each line of 'dkms status'; before dkms 3 a comma stood for the slash."""
    rows = []
    for line in text.splitlines():
        left, colon, state = line.partition(": ")
        words = re.split(r"/|, ?", left.strip())
        if colon and len(words) > 1:
            rows.append((words[0], words[1], words[2] if len(words) > 2 else "", state.split(" ")[0]))
    return tuple(rows)
