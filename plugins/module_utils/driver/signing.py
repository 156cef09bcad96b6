# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whose signature the driver's modules need, and what forbids it. Pure.

A kernel that loads signed modules alone takes those of a key that it or the firmware knows. The distribution has one;
DKMS signs with a key of the host's own, which a person has to confirm once at the console.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, List, Sequence, Tuple

from ..core.facts import HostFacts
from ..core.refusal import Refusal
from ..core.versions import version_key
from .kernels import Kernel
from .policy import ENROLL, IGNORE, Policy
from .target import Target

# What a key is to the firmware
ENROLLED, PENDING, UNKNOWN = "enrolled", "pending", "unknown"
# As DKMS calls a key that it makes (dkms, prepare_mok())
NAME_OF_MADE = "DKMS module signing key"
# DKMS reads /etc/dkms/framework.conf.d, and there what key to sign with, since then (dkms, commits 1c79926, 3323033);
# before, it signs with this one alone (sign_build())
FIRST_TOLD = "3.0.4"
KEY_OF_UNTOLD = "/var/lib/shim-signed/mok/MOK.priv"
# How a key begins that sign-file has of a PKCS#11 module: DKMS makes none in its place (dkms, prepare_mok())
TOKEN = "pkcs11:"


@dataclass(frozen=True)
class SigningKey:
    """The key that DKMS signs modules with.

    key, certificate: their files on the host; the key may be a URI of PKCS#11 instead (RFC 7512).
    given:            whether the policy names them, and not DKMS or its defaults.
    name, serial:     of the certificate, as modinfo tells a signer; '' while there is none.
    sha1:             its fingerprint, as MOK Manager shows it.
    state:            ENROLLED, PENDING (imported, not confirmed yet) or UNKNOWN to the firmware.
    objection:        why modules cannot be signed with it, as found; '' where they can.
    lacks:            programs that its enrolment needs and the host does not have.
    alone:            whether the private key is there and its certificate is not.
    unenrollable:     (what is found, what to do) where the firmware cannot be asked to take it, () where it can.
    """

    key: str = "/var/lib/dkms/mok.key"
    certificate: str = "/var/lib/dkms/mok.pub"
    given: bool = False
    name: str = ""
    serial: str = ""
    sha1: str = ""
    state: str = UNKNOWN
    objection: str = ""
    lacks: Tuple[str, ...] = ()
    alone: bool = False
    unenrollable: Tuple[str, ...] = ()

    @property
    def called(self) -> str:
        return self.name or NAME_OF_MADE

    @property
    def on_token(self) -> bool:
        """Whether the private key is in no file: a token keeps it, and only its certificate can be looked at."""
        return self.key.startswith(TOKEN)


def asked_for(policy: Policy, facts: HostFacts) -> bool:
    """Whether modules have to be signed here."""
    return facts.secure_boot and policy.secure_boot != IGNORE


def signed_with(kernel: Kernel, key: SigningKey) -> bool:
    """Whether a kernel's module has the signature of this key: another build with it would change nothing."""
    return bool(kernel.key) and kernel.key == key.serial


def is_needed(kernels: Iterable[Kernel], policy: Policy, facts: HostFacts, target: Target) -> bool:
    """Whether a module needs the host's own key: one that is built, or one that the kernel does not take yet."""
    return asked_for(policy, facts) and not target.is_precompiled and not all(
        kernel.module == target.version and kernel.trusted for kernel in kernels)


def refuse_unsigned(
    kernels: Sequence[Kernel], key: SigningKey, policy: Policy, facts: HostFacts, target: Target, dkms: str
) -> List[Refusal]:
    """Refuse what would be built and then not be loaded. dkms: version of the one that will build, '' where no package
    tells it."""
    unheeded = _refuse_unheeded(key, policy, facts, target, dkms)
    if unheeded or not is_needed(kernels, policy, facts, target):
        return unheeded
    if key.objection and key.on_token:
        return [Refusal(
            "driver.signing_certificate_unusable", "%s, and %s is the key that DKMS is told to sign with" % (
                key.objection, key.key),
            "the certificate of that key in a file: it cannot be made anew outside the token",
            "write it there in DER, or name its file as `mok_certificate` in DKMS's configuration")]
    if key.objection:
        return [Refusal(
            "driver.signing_key_unusable", key.objection,
            "a private key that only root can read (mode 0600), with its certificate in DER beside it",
            "correct it (`chown root`, `chmod 0600`, `openssl x509 -outform DER`)"
            + (", or name another pair with `signing_key` and `signing_certificate`" if key.given else ""),
            option="signing_key" if key.given else "")]
    if key.state == ENROLLED:
        return []
    return _refuse_enrolment(key, policy) if policy.secure_boot == ENROLL else [_without_key(kernels, key, target)]


def _refuse_unheeded(
    key: SigningKey, policy: Policy, facts: HostFacts, target: Target, dkms: str
) -> List[Refusal]:
    """Refuse a key of the policy's that DKMS would not sign with, whatever it builds first: the check of what it has
    built takes no other."""
    if not asked_for(policy, facts) or target.is_precompiled or not key.given or key.key == KEY_OF_UNTOLD:
        return []
    if not dkms or version_key(dkms) >= version_key(FIRST_TOLD):
        return []
    return [Refusal(
        "driver.signing_key_unheeded",
        "DKMS %s, which signs with %s and cannot be told of %s" % (dkms, KEY_OF_UNTOLD, key.key),
        "DKMS %s or newer, which reads /etc/dkms/framework.conf.d" % FIRST_TOLD,
        "install such a DKMS, or leave `signing_key` and `signing_certificate` empty: your pair may lie where this one "
        "looks for it (MOK.priv, with MOK.der beside it), or its own key be enrolled (`secure_boot`: `enroll`)",
        option="signing_key")]


def _refuse_enrolment(key: SigningKey, policy: Policy) -> List[Refusal]:
    if key.unenrollable:
        found, remedy = key.unenrollable
        return [Refusal(
            "driver.enrollment_impossible", "%s, and %s is not enrolled" % (found, key.certificate),
            "a request to enrol the key that somebody is asked to confirm", remedy
            + ", or set `secure_boot` to `ignore` where the kernel takes the modules", option="secure_boot")]
    if key.state == PENDING:
        return []
    refusals = []
    if key.lacks:
        refusals.append(Refusal(
            "driver.enrollment_without_tools", "no %s on this host" % " and no ".join(key.lacks),
            "the programs that prepare the enrolment of a key",
            "install %s" % " and ".join(key.lacks)))
    if not policy.enrollment_password:
        refusals.append(Refusal(
            "driver.enrollment_without_password",
            "no `enrollment_password`, and %s is not enrolled" % key.certificate,
            "a password for one use, which is typed at the console when the key is confirmed",
            "set `enrollment_password` (in a vault)", option="enrollment_password"))
    return refusals


def _without_key(kernels: Sequence[Kernel], key: SigningKey, target: Target) -> Refusal:
    signers = sorted({kernel.signer for kernel in kernels if kernel.module == target.version and not kernel.trusted})
    there = "" if not signers else "; the modules there are signed by %s" % ", ".join(
        signer or "nobody" for signer in signers)
    if key.state == PENDING and not key.unenrollable:
        return Refusal(
            "driver.signing_key_unconfirmed",
            "Secure Boot is on, and key '%s' (SHA1 %s) was imported and is not confirmed yet%s" % (
                key.called, key.sha1, there),
            "kernel modules that the kernel will load",
            "reboot the host and confirm the key at its console (Enroll MOK, Continue, Yes, the password), or set "
            "`secure_boot` to `enroll`, which installs the driver before that", option="secure_boot")
    cause, enrolment = key.unenrollable or (
        "Secure Boot is on",
        "set `secure_boot` to `enroll` with an `enrollment_password`, or enrol DKMS's key yourself (`mokutil --import "
        "%s`, then confirm it on the console at the next boot)" % key.certificate)
    return Refusal(
        "driver.secure_boot_without_key",
        "%s, and no enrolled key signs the modules that DKMS builds%s" % (
            "modules have to be signed here (%s)" % cause if key.unenrollable else cause, there),
        "kernel modules that the kernel will load",
        "%s, or set `source` to `preinstalled` with modules that the distribution signed, or `secure_boot` to `ignore`"
        % enrolment, option="secure_boot")
