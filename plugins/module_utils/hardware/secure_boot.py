# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether the kernel loads signed modules alone, which keys it takes, and which wait to be confirmed at the console.

All of it is read from the firmware's variables and from the kernel itself, by no program: what mokutil calls enrolled
may still wait for its confirmation (`mokutil --test-key` looks into MokNew too).
"""
from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import Iterator, Optional, Tuple

from ..core.errors import HostFailed
from ..core.host import Host
from ..core.plan import CONFIRMATION, Disruption, Requirement
from .certificates import Certificate, parse_certificate

EFI_VARIABLES = "/sys/firmware/efi/efivars"
# UEFI specification: global variables, and the image security database; shim: its variables (MokVars.txt)
GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
IMAGE_SECURITY = "d719b2cb-3d3a-4596-a3bc-dad00e67656f"
SHIM = "605dab50-e046-4300-abb6-3dd810dd8b23"
# A list that is too long for a variable is whole in the table that Linux 5.10 and newer show here
MOK_TABLE = "/sys/firmware/efi/mok-variables/MokListRT"
SIGNATURES_ENFORCED = "/sys/module/module/parameters/sig_enforce"
LOCKDOWN = "/sys/kernel/security/lockdown"
_ATTRIBUTES = 4
_X509 = uuid.UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072").bytes_le
_HEADER = struct.Struct("<16sIII")
_OWNER = 16


@dataclass(frozen=True)
class FirmwareKeys:
    """Certificates that the firmware holds for the kernel.

    enrolled: those whose signatures are taken: of shim's list as it was at this boot, and of the firmware's own.
    pending:  those that were imported and wait to be confirmed at the console of the next boot; a request without its
              password, as a killed mokutil leaves it, is none.
    readable: whether any list could be read; where none can, nothing tells who may sign.
    shim:     whether shim has started this system: it alone asks for the confirmation.
    """

    enrolled: Tuple[Certificate, ...] = ()
    pending: Tuple[Certificate, ...] = ()
    readable: bool = False
    shim: bool = False


def modules_must_be_signed(host: Host) -> bool:
    """As the kernel decides it: by the firmware unless shim's validation is off, by a parameter, or by lockdown
    (Linux: efi_get_secureboot_mode(), module.sig_enforce, kernel_lockdown(7))."""
    secure = _flag(host, "SecureBoot", GLOBAL) and not _flag(host, "SetupMode", GLOBAL)
    if secure and not _flag(host, "MokSBStateRT", SHIM):
        return True
    lockdown = _readable_text(host, LOCKDOWN)
    return _readable_text(host, SIGNATURES_ENFORCED).strip() == "Y" or (
        "[" in lockdown and "[none]" not in lockdown)


def firmware_keys(host: Host) -> FirmwareKeys:
    """Reads as far as the reader may; mok-variables are for root alone."""
    lists = [_variable(host, "db", IMAGE_SECURITY), _read(host, MOK_TABLE) or _variable(host, "MokListRT", SHIM)]
    mirrored = "RT-" + SHIM
    return FirmwareKeys(
        tuple(each for data in lists for each in signature_list(data or b"")),
        tuple(signature_list(_variable(host, "MokNew", SHIM) or b"")) if _variable(host, "MokAuth", SHIM) else (),
        any(data is not None for data in lists),
        lists[1] is not None or any(name.endswith(mirrored) for name in host.list(EFI_VARIABLES)))


def obstacle(host: Host, firmware: FirmwareKeys) -> Tuple[str, ...]:
    """(what is found, what to do) where no request to enrol a key would ever be answered, () where one can be made."""
    if not host.is_dir("/sys/firmware/efi"):
        return ("a system that no EFI firmware has started",
                "sign the modules with a key that this kernel was built with, or let it load unsigned ones (its "
                "arguments `module.sig_enforce` and `lockdown`)")
    if not host.list(EFI_VARIABLES):
        return ("no variables of the firmware in %s" % EFI_VARIABLES,
                "mount them (`mount -t efivarfs efivarfs %s`), in a container those of its host" % EFI_VARIABLES)
    if not firmware.shim:
        return ("a system that was started without shim, whose MOK Manager asks for the confirmation",
                "enrol the key in the firmware's own database (`db`), or boot by shim")
    return ()


def signature_list(data: bytes) -> Iterator[Certificate]:
    """The X.509 certificates of EFI signature lists (UEFI specification, 'Signature Database'); hashes are left out,
    and so is what is no certificate."""
    while len(data) >= _HEADER.size:
        kind, size, header, each = _HEADER.unpack_from(data)
        if size < _HEADER.size + header or size > len(data) or each <= _OWNER:
            return
        entries = data[_HEADER.size + header:size]
        if kind == _X509:
            for start in range(0, len(entries) - each + 1, each):
                try:
                    yield parse_certificate(entries[start + _OWNER:start + each])
                except ValueError:
                    continue
        data = data[size:]


def _flag(host: Host, name: str, vendor: str) -> bool:
    return (_variable(host, name, vendor) or b"")[-1:] == b"\x01"


def _variable(host: Host, name: str, vendor: str) -> Optional[bytes]:
    """A variable without the four bytes of attributes before it, None where there is none."""
    data = _read(host, "%s/%s-%s" % (EFI_VARIABLES, name, vendor))
    return None if data is None else data[_ATTRIBUTES:]


def _readable_text(host: Host, path: str) -> str:
    return (_read(host, path) or b"").decode("utf-8", "replace")


def _read(host: Host, path: str) -> Optional[bytes]:
    """None, too, for what this reader may not see."""
    try:
        return host.read_bytes(path)
    except HostFailed as failure:
        if not failure.is_denial:
            raise
        return None


def confirmation(capability: str, name: str, fingerprint: str = "") -> Requirement:
    """What a person does at the console: shim starts MOK Manager at the next boot, and it waits for ten seconds."""
    return Requirement(
        capability, CONFIRMATION, "key '%s'" % name,
        "The kernel loads no module that this key has signed before it is confirmed: reboot the host, and at its "
        "console press a key within ten seconds, choose Enroll MOK, Continue, Yes, and type `enrollment_password`%s."
        % ("; the key's SHA1 fingerprint is %s" % fingerprint if fingerprint else ""),
        Disruption.reboot, {"before": {"key": "imported"}, "after": {"key": "enrolled"}})
