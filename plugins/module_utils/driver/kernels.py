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

NOTE = "unbuilt"
# Where DKMS keeps its key: Ubuntu's update-secureboot-policy, then dkms itself
MOK_FILES = ("/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub", "/var/lib/dkms/mok.der")
_CERTIFICATE = re.compile(r"^\s*mok_certificate=[\"']?([^\"'\s#]+)", re.MULTILINE)
_SERIAL = re.compile(r"Serial Number:\s*(?:\d+ \(0x([0-9a-f]+)\)|([0-9a-f:]+))")
_NAME = re.compile(r"^\s*Subject:.*?\bCN ?= ?([^,\n/]+)", re.MULTILINE)
_KEYRING = re.compile(r"\basymmetri (.+?): [0-9a-f]+: ")


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
    """

    release: str
    headers: bool = False
    module: str = ""
    license: str = ""
    signer: str = ""
    trusted: bool = True
    failed: str = ""

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
        failed.get(release, "")) for release, module in modules.items())


def remember_failure(host: Host, journal: Journal, release: str, version: str) -> None:
    """Note that a version's module does not build for a kernel; notes of kernels that are gone go too."""
    memory = journal.recall("driver")
    known = {name: value for name, value in memory.get(NOTE, {}).items() if name in kernels(host)}
    journal.remember("driver", dict(memory, **{NOTE: dict(known, **{release: version})}))


# signatures


def signing_key_enrolled(host: Host) -> bool:
    """Whether the firmware knows the key that DKMS signs with: the one its configuration names, else its own."""
    files = ["/etc/dkms/framework.conf"] + host.glob("/etc/dkms/framework.conf.d/*.conf")
    named = [name for path in files for name in _CERTIFICATE.findall(host.read(path) or "")]
    for path in named[-1:] or MOK_FILES:
        if host.exists(path):
            done = host.run(["mokutil", "--test-key", path], check=False)
            if "already enrolled" in done.stdout + done.stderr:
                return True
    return False


@dataclass(frozen=True)
class KnownKeys:
    """The keys whose signatures the kernel takes.

    enrolled: {serial number as Module.key has it: common name} of the keys that the firmware has.
    built_in: names of the keys on the kernel's keyrings.
    """

    enrolled: Mapping[str, str]
    built_in: Tuple[str, ...]


def known_keys(host: Host) -> Optional[KnownKeys]:
    """Keys whose signatures the kernel takes; None without mokutil: nothing tells who may sign then."""
    if not host.which("mokutil"):
        return None
    return KnownKeys(parse_enrolled(host.run(["mokutil", "--list-enrolled"], check=False).stdout),
                     tuple(_KEYRING.findall(host.read("/proc/keys") or "")))


def is_trusted(module: Module, known: Optional[KnownKeys]) -> bool:
    """Whether a key that the firmware or the kernel knows signed a module; where nothing tells, any signature will do.

    Keys that DKMS makes are all called the same, so that of an enrolled key the serial number counts. Keys that the
    kernel was built with are known by name.
    """
    if not module.signer or known is None:
        return bool(module.signer)
    return module.key in known.enrolled or (
        module.signer in known.built_in and module.signer not in known.enrolled.values())


def parse_enrolled(text: str) -> Dict[str, str]:
    """{serial number as Module.key has it: common name} of 'mokutil --list-enrolled'."""
    keys = {}
    for block in re.split(r"^\[key \d+\]", text, flags=re.MULTILINE):
        serial, name = _SERIAL.search(block), _NAME.search(block)
        if serial:
            digits = serial.group(1) or serial.group(2).replace(":", "")
            keys[digits.lstrip("0")] = name.group(1).strip() if name else ""
    return keys


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
