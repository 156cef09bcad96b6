# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How the key that DKMS signs with comes to the firmware: made, named to DKMS, imported, confirmed at the console.

What is in the firmware afterwards is not taken back with the driver: other modules may be signed with the same key.
"""
from __future__ import annotations

from typing import Dict, List, Tuple

from ..core.errors import GpuOpsError
from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Kept, Requirement, Step
from ..core.steps import Executor, file_step, managed, restore_step
from ..hardware.certificates import parse_certificate
from ..hardware.secure_boot import confirmation, firmware_keys
from .files import FRAMEWORK_FILE
from .observation import Observation
from .policy import ENROLL, Policy
from .signing import ENROLLED, NAME_OF_MADE, PENDING, UNKNOWN, SigningKey, asked_for, is_needed
from .signing_key import state_of
from .target import Target

NAME = "driver"
MAKE = "signing_key.make"
IMPORT = "signing_key.import"


def framework_text(key: SigningKey) -> str:
    """dkms(8), 'mok_signing_key' and 'mok_certificate'; DKMS reads this directory since 3.0.4 (signing.FIRST_TOLD)."""
    return managed('mok_signing_key="%s"\nmok_certificate="%s"\n' % (key.key, key.certificate))


# steps


def steps(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> List[Step]:
    """Before anything is built, so that the package's own script signs with the right key."""
    return [*_framework_steps(observation), *request_steps(observation, policy, facts, target)]


def request_steps(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> List[Step]:
    """The request that somebody confirms, and the key itself where there is none."""
    key = observation.signing_key
    if key.state != UNKNOWN or policy.secure_boot != ENROLL or not is_needed(
            observation.kernels, policy, facts, target):
        return []
    makes: List[Step] = []
    if not key.serial:
        private = {} if key.alone else {key.key: "a private key, for root alone"}
        made_now = {**private, key.certificate: NAME_OF_MADE}
        why = "The private key that DKMS signs with has no certificate." if key.alone else \
            "DKMS has no key yet to sign the modules with that it builds."
        makes = [Step(NAME, MAKE, key.certificate, why,
                      change={"before": dict.fromkeys(made_now), "after": made_now},
                      parameters={"key": key.key}, reversible=False)]
    return [*makes, Step(
        NAME, IMPORT, key.certificate,
        "The kernel loads signed modules alone, and the firmware does not know the key that DKMS signs with.",
        change={"before": {key.called: None}, "after": {key.called: "to be confirmed at the console"}},
        reversible=False, depends_on=tuple(step.id for step in makes))]


def _framework_steps(observation: Observation) -> List[Step]:
    there, key = observation.files.get(FRAMEWORK_FILE), observation.signing_key
    if not key.given:
        return [restore_step(NAME, FRAMEWORK_FILE, there, observation.originals[FRAMEWORK_FILE])] \
            if FRAMEWORK_FILE in observation.originals else []
    wanted = framework_text(key)
    return [] if there == wanted else [file_step(
        NAME, FRAMEWORK_FILE, there, wanted, "DKMS signs the modules that it builds with this key.")]


def unconfirmed(observation: Observation, policy: Policy, facts: HostFacts, target: Target) -> str:
    """Name of the key that has signed the modules and waits for its confirmation once the plan is done, '' if none."""
    waits = observation.signing_key.state != ENROLLED and is_needed(observation.kernels, policy, facts, target)
    return observation.signing_key.called if waits else ""


def requirements(
    observation: Observation, policy: Policy, facts: HostFacts, target: Target
) -> Tuple[Requirement, ...]:
    name = unconfirmed(observation, policy, facts, target)
    return (confirmation(NAME, name, observation.signing_key.sha1),) if name else ()


def kept(observation: Observation, policy: Policy, facts: HostFacts) -> Tuple[Kept, ...]:
    """Of an uninstallation: what was made for the firmware stays with it."""
    key = observation.signing_key
    if not asked_for(policy, facts) or key.state not in (ENROLLED, PENDING):
        return ()
    return (Kept("signing key '%s'" % key.called,
                 "the firmware has it for every module that DKMS builds here; `mokutil --delete %s` prepares to take "
                 "it out" % key.certificate),)


# executors


def make_key(host: Host, journal: Journal, step: Step) -> None:
    """As DKMS makes it (dkms, prepare_mok()); the certificate comes last. A private key that is there without one, as a
    killed run leaves it, is kept: other modules may be signed with it."""
    place = step.parameters["key"]
    there = host.read_bytes(place) or b""
    with host.scratch() as directory:
        key, certificate = directory + "/key", directory + "/certificate"
        files = Host()
        if there:
            files.write_bytes(key, there, 0o600)
        host.run(["openssl", "req", "-new", "-x509", *(["-key", key] if there else [
            "-nodes", "-newkey", "rsa:2048", "-keyout", key]), "-passin", "pass:", "-sha256", "-days", "36500",
            "-subj", "/CN=%s/" % NAME_OF_MADE, "-addext", "extendedKeyUsage=codeSigning", "-outform", "DER",
            "-out", certificate])
        private, public = files.read_bytes(key) or b"", files.read_bytes(certificate) or b""
    host.remove(step.subject)
    if not there:
        host.remove(place)
        host.write_bytes(place, private, 0o600)
    host.write_bytes(step.subject, public, 0o644)


def importer(password: str) -> Executor:
    """The executor of IMPORT; the password is in no step, no file and no list of arguments, its hash in a file that
    only this process sees."""

    def import_key(host: Host, journal: Journal, step: Step) -> None:
        certificate = parse_certificate(host.read_bytes(step.subject) or b"")
        if state_of(certificate, firmware_keys(host)) != UNKNOWN:
            return
        hashed = host.run(["openssl", "passwd", "-6", "-stdin"], stdin=password + "\n").stdout
        with host.scratch() as directory:
            Host().write(directory + "/hash", hashed, 0o600)
            done = host.run(["mokutil", "--import", host.path(step.subject), "--hash-file", directory + "/hash"],
                            check=False)
        if state_of(certificate, firmware_keys(host)) == UNKNOWN:
            raise GpuOpsError(
                "driver.signing_key_not_imported",
                found="mokutil ended with %d, and the firmware has no request to enrol %s: %s" % (
                    done.rc, step.subject, " | ".join((done.stderr or done.stdout).splitlines()[-3:])),
                wanted="a request that is confirmed at the console of the next boot",
                remedy="see whether the host boots by shim and whether its firmware takes variables (`mokutil "
                       "--list-new`, `ls /sys/firmware/efi/efivars`)",
                rc=done.rc)

    return import_key


def secret_executors(policy: Policy) -> Dict[str, Executor]:
    return {IMPORT: importer(policy.enrollment_password)}


EXECUTORS: Dict[str, Executor] = {MAKE: make_key}
