# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""openssl makes keys, hashes the password and signs; kmod reads the signature. The firmware alone is a double."""
from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, List, Tuple

import pytest
import signing_keys as keys
from driver_world import World, made, policy
from gpu_hosts import A100, facts

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import enrollment, executors, signing
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.files import FRAMEWORK_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.signing_key import read_signing_key
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.boot import read_module

PASSWORD = "correct horse"
MOK = ("/var/lib/dkms/mok.key", "/var/lib/dkms/mok.pub")
SHIM_SIGNED = ("/var/lib/shim-signed/mok/MOK.priv", "/var/lib/shim-signed/mok/MOK.der")
URI = "pkcs11:token=fleet;object=modsign"
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="keys belong to root")
needs_modinfo = pytest.mark.skipif(Host().which("modinfo") is None, reason="kmod is not installed")


class Firmware(Host):
    """A host whose mokutil puts what it imports into a request, with the hash that it was given.

    works: whether the firmware takes variables.
    """

    def __init__(self, root: str, works: bool = True) -> None:
        super().__init__(root)
        self.works = works
        self.said: List[List[str]] = []
        self.hashed = ""

    def run(self, argv: Any, *words: Any, **options: Any) -> CommandResult:
        self.said.append(list(argv))
        if argv[0] != "mokutil":
            return super().run(argv, *words, **options)
        hash_file = Path(argv[argv.index("--hash-file") + 1])
        assert hash_file.stat().st_mode & 0o077 == 0 and hash_file.parent.stat().st_mode & 0o077 == 0
        self.hashed = hash_file.read_text()
        if self.works:
            keys.variable(self, "MokNew", keys.signature_list([Path(argv[2]).read_bytes()]))
            keys.variable(self, "MokAuth", self.hashed.encode())
        return CommandResult(argv, 0 if self.works else 255, "", "Failed to write MokNew\n")


def put(host: Host, pair: keys.Pair, mode: int = 0o600) -> None:
    host.write_bytes(MOK[0], pair.key.read_bytes(), mode)
    host.write_bytes(MOK[1], pair.der)


def carried_out(host: Host, action: str) -> None:
    step = Step("driver", action, MOK[1], "", parameters={"key": MOK[0]})
    wanted = policy(secure_boot="enroll", enrollment_password=PASSWORD)
    {**executors.EXECUTORS, **executors.secret_executors(wanted)}[action](host, Journal(host), step)


@root_only
class TestReading:
    def test_where_there_is_none_it_is_one_that_dkms_would_make(self, tmp_path: Path) -> None:
        host = Host(str(tmp_path))
        keys.firmware(host)
        assert read_signing_key(host, policy()) == signing.SigningKey(*MOK, lacks=("mokutil", "openssl"))

    @pytest.mark.parametrize("release, key", [
        ("ID=ubuntu\nID_LIKE=debian\n", SHIM_SIGNED), ('ID=linuxmint\nID_LIKE="ubuntu debian"\n', SHIM_SIGNED),
        ("ID=debian\n", MOK), ('ID=kali\nID_LIKE="debian ubuntu"\n', MOK), ("ID=rocky\nID_LIKE=rhel\n", MOK)])
    def test_on_ubuntu_alone_it_is_the_one_of_its_own_program(
        self, tmp_path: Path, release: str, key: Tuple[str, str]
    ) -> None:
        host = Host(str(tmp_path))
        host.write("/etc/os-release", release)
        # Debian's shim-signed-common has the program too, and others put their keys into the same directory
        host.write("/usr/sbin/update-secureboot-policy", "", mode=0o755)
        host.write(SHIM_SIGNED[1], "")
        found = read_signing_key(host, policy())
        assert (found.key, found.certificate) == key

    @pytest.mark.parametrize("os_id, said, pair", [
        ("debian", "mok_signing_key=/k", ("/k", MOK[1])), ("ubuntu", "mok_signing_key=/k", ("/k", MOK[1])),
        ("debian", "mok_certificate=/c", (MOK[0], "/c")), ("ubuntu", "mok_certificate=/c", SHIM_SIGNED)])
    def test_half_a_pair_that_dkms_is_told_of_is_made_whole_as_dkms_does_it(
        self, tmp_path: Path, os_id: str, said: str, pair: Tuple[str, str]
    ) -> None:
        host = Host(str(tmp_path))
        host.write("/etc/os-release", "ID=%s\n" % os_id)
        host.write("/etc/dkms/framework.conf", said + "\n")
        found = read_signing_key(host, policy())
        assert (found.key, found.certificate) == pair

    def test_the_one_that_dkms_is_told_of_counts(self, tmp_path: Path) -> None:
        host = Host(str(tmp_path))
        host.write("/etc/dkms/framework.conf", "# mok_certificate=/a\nmok_signing_key=/b.key\nmok_certificate=/b\n")
        host.write("/etc/dkms/framework.conf.d/site.conf", 'mok_certificate="/etc/keys/site.der"\n')
        found = read_signing_key(host, policy())
        assert (found.key, found.certificate) == ("/b.key", "/etc/keys/site.der")

    def test_one_of_the_policy_that_is_not_there_is_told(self, tmp_path: Path) -> None:
        wanted = policy(signing_key="/k", signing_certificate="/c")
        assert read_signing_key(Host(str(tmp_path)), wanted).objection == "no file /k and no file /c"

    @pytest.mark.parametrize("mode, said", [(0o600, ""), (0o400, ""), (0o640, "mode 0640"), (0o604, "mode 0604")])
    def test_a_key_that_others_can_read_is_told(self, tmp_path: Path, mode: int, said: str) -> None:
        host = Host(str(tmp_path / "root"))
        put(host, keys.make(tmp_path, "ours"), mode)
        objection = read_signing_key(host, policy()).objection
        assert said in objection and bool(said) == bool(objection)

    def test_a_key_of_somebody_else_is_told(self, tmp_path: Path) -> None:
        host = Host(str(tmp_path / "root"))
        put(host, keys.make(tmp_path, "ours"))
        os.chown(host.path(MOK[0]), 1000, 0)
        assert "owner 1000" in read_signing_key(host, policy()).objection

    def test_what_is_no_certificate_is_told(self, tmp_path: Path) -> None:
        host = Host(str(tmp_path))
        host.write(MOK[0], "", 0o600)
        host.write(MOK[1], "certificate")
        assert read_signing_key(host, policy()).objection.startswith(MOK[1])

    def test_another_key_of_the_same_name_is_not_the_enrolled_one(self, tmp_path: Path) -> None:
        host, other = Host(str(tmp_path / "root")), tmp_path / "other"
        other.mkdir()
        ours, theirs = keys.make(tmp_path, "DKMS"), keys.make(other, "DKMS")
        put(host, ours)
        for enrolled, pending, state in (((theirs,), (), "unknown"), ((theirs,), (ours,), "pending"),
                                         ((ours, theirs), (), "enrolled")):
            keys.firmware(host, enrolled, pending)
            assert read_signing_key(host, policy()).state == state

    def test_one_that_the_kernel_was_built_with_needs_no_firmware(self, tmp_path: Path) -> None:
        host, ours = Host(str(tmp_path / "root")), keys.make(tmp_path, "ours")
        put(host, ours)
        for key_id, state in (("00" * 20, "unknown"), (ours.read.key_id, "enrolled")):
            host.write("/proc/keys", "2f0ff6ee I------     2 perm 1f010000     0     0 asymmetri gpuops: ours: %s: "
                                     "X509.rsa %s []\n" % (key_id, key_id[-8:]))
            assert read_signing_key(host, policy()).state == state

    def test_why_no_request_to_enrol_it_would_be_answered_is_told(self, tmp_path: Path) -> None:
        host, ours = Host(str(tmp_path / "root")), keys.make(tmp_path, "ours")
        put(host, ours)

        def told() -> str:
            return " ".join(read_signing_key(host, policy()).unenrollable)

        assert "no EFI firmware" in told()
        os.makedirs(host.path("/sys/firmware/efi/efivars"))
        assert "mount -t efivarfs" in told()
        keys.variable(host, "SecureBoot", b"\x01", keys.GLOBAL)
        assert "without shim" in told()
        keys.variable(host, "MokNew", b"")
        assert "without shim" in told(), "anybody may make a request"
        keys.variable(host, "SbatLevelRT", b"sbat,1")
        assert told() == ""
        host.write_bytes(MOK[1], subprocess.run(
            ["openssl", "x509", "-inform", "DER", "-in", str(ours.certificate)],
            check=True, capture_output=True).stdout)
        assert "-outform DER" in told(), "mokutil takes no other"


@root_only
class TestToken:
    """DKMS's configuration names a key that a PKCS#11 token keeps."""

    def host(self, tmp_path: Path, more: str = "") -> Host:
        host = Host(str(tmp_path / "root"))
        host.write("/etc/dkms/framework.conf", 'mok_signing_key="%s%s"\nmok_certificate=%s\n' % (URI, more, MOK[1]))
        return host

    def test_its_certificate_tells_of_it_as_of_any_other(self, tmp_path: Path) -> None:
        host, ours = self.host(tmp_path), keys.make(tmp_path, "ours")
        keys.firmware(host, [ours])
        host.write_bytes(MOK[1], ours.der)
        found = read_signing_key(host, policy())
        assert (found.key, found.state, found.serial) == (URI, "enrolled", ours.read.serial)
        assert found.objection == "" and not found.alone

    def test_without_its_certificate_it_is_refused_and_no_other_is_made(self, tmp_path: Path) -> None:
        host = self.host(tmp_path)
        keys.firmware(host)
        key = replace(read_signing_key(host, policy()), lacks=())
        for asked in ("enroll", "require_signed"):
            wanted = policy(secure_boot=asked, enrollment_password=PASSWORD if asked == "enroll" else "")
            plan = made(World(signing_key=key), wanted, facts(A100, secure_boot=True))
            (refusal,) = plan.refusals
            assert refusal.code == "driver.signing_certificate_unusable" and not plan.steps
            assert "no file %s" % MOK[1] in refusal.found and URI in refusal.found
            assert "`mok_certificate`" in refusal.remedy and "chmod" not in refusal.remedy

    def test_one_that_the_firmware_does_not_know_is_imported_and_stays(self, tmp_path: Path) -> None:
        host, ours = self.host(tmp_path), keys.make(tmp_path, "ours")
        keys.firmware(host)
        host.write_bytes(MOK[1], ours.der)
        key = replace(read_signing_key(host, policy()), lacks=(), unenrollable=())
        steps = made(World(signing_key=key), policy(secure_boot="enroll", enrollment_password=PASSWORD),
                     facts(A100, secure_boot=True)).steps
        assert [step.action for step in steps if step.action.startswith("signing_key.")] == [enrollment.IMPORT]

    def test_its_pin_is_told_nobody(self, tmp_path: Path) -> None:
        assert read_signing_key(self.host(tmp_path, "?pin-value=1234"), policy()).key == URI

    def test_an_option_is_a_file(self) -> None:
        with pytest.raises(GpuOpsError, match="PKCS#11") as caught:
            policy(signing_key=URI + "?pin-value=1234", signing_certificate="/c")
        assert caught.value.refusals[0].code == "driver.signing_pair_incomplete" and "1234" not in str(caught.value)


@root_only
class TestMaking:
    def test_the_pair_fits_and_only_root_reads_the_key(self, tmp_path: Path) -> None:
        host = Firmware(str(tmp_path))
        carried_out(host, enrollment.MAKE)
        found = read_signing_key(host, policy())
        assert (found.name, found.objection, host.mode(MOK[0])) == (signing.NAME_OF_MADE, "", 0o600)
        public = [subprocess.run(["openssl", *words], check=True, capture_output=True).stdout for words in (
            ["pkey", "-in", host.path(MOK[0]), "-pubout"],
            ["x509", "-inform", "DER", "-in", host.path(MOK[1]), "-noout", "-pubkey"])]
        assert public[0] == public[1]

    def test_half_a_pair_that_a_killed_run_left_is_made_whole(self, tmp_path: Path) -> None:
        host = Firmware(str(tmp_path))
        host.write(MOK[0], "", 0o644)
        assert read_signing_key(host, policy()).serial == ""
        carried_out(host, enrollment.MAKE)
        assert read_signing_key(host, policy()).objection == ""

    def test_a_private_key_without_its_certificate_stays_and_gets_one(self, tmp_path: Path) -> None:
        host, ours = Firmware(str(tmp_path / "root")), keys.make(tmp_path, "ours")
        host.write_bytes(MOK[0], ours.key.read_bytes(), 0o600)
        found = read_signing_key(host, policy())
        wanted = policy(secure_boot="enroll", enrollment_password=PASSWORD)
        steps = made(World(signing_key=replace(found, lacks=(), unenrollable=())), wanted,
                     facts(A100, secure_boot=True)).steps
        assert [step.change["after"] for step in steps if step.action == enrollment.MAKE] == [
            {MOK[1]: signing.NAME_OF_MADE}]
        carried_out(host, enrollment.MAKE)
        assert host.read_bytes(MOK[0]) == ours.key.read_bytes(), "other modules may be signed with it"
        public = [subprocess.run(["openssl", "x509", "-inform", "DER", "-in", path, "-noout", "-pubkey"], check=True,
                                 capture_output=True).stdout for path in (host.path(MOK[1]), str(ours.certificate))]
        assert public[0] == public[1]

    def test_what_cannot_be_read_in_its_place_is_told_and_stays(self, tmp_path: Path) -> None:
        host = Firmware(str(tmp_path))
        host.write(MOK[0], "-----BEGIN ENCRYPTED PRIVATE KEY-----\n", 0o600)
        with pytest.raises(GpuOpsError):
            carried_out(host, enrollment.MAKE)
        assert host.read(MOK[0]) == "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
        assert not host.exists(MOK[1])


@root_only
class TestImporting:
    def test_the_request_waits_and_its_hash_is_of_the_password(self, tmp_path: Path) -> None:
        host = Firmware(str(tmp_path / "root"))
        put(host, keys.make(tmp_path, "ours"))
        carried_out(host, enrollment.IMPORT)
        assert read_signing_key(host, policy()).state == "pending"
        salt = host.hashed.split("$")[2]
        again = subprocess.run(["openssl", "passwd", "-6", "-salt", salt, "-stdin"], input=PASSWORD, check=True,
                               capture_output=True, text=True).stdout
        assert host.hashed == again

    def test_the_password_is_on_no_command_line_and_in_no_file(self, tmp_path: Path) -> None:
        host = Firmware(str(tmp_path / "root"))
        put(host, keys.make(tmp_path, "ours"))
        carried_out(host, enrollment.IMPORT)
        assert not [argv for argv in host.said if PASSWORD in " ".join(argv)]
        files = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
        assert files and not [path for path in files if PASSWORD.encode() in path.read_bytes()]
        assert not Path(host.said[-1][-1]).exists(), "the hash is gone too"

    def test_the_password_is_in_no_plan_and_no_digest(self) -> None:
        there = facts(A100, secure_boot=True)
        plans = [made(World(), policy(secure_boot="enroll", enrollment_password=word), there)
                 for word in (PASSWORD, "another")]
        assert plans[0] == plans[1] and PASSWORD not in str(plans[0].to_dict())

    def test_what_is_imported_or_enrolled_is_not_imported_again(self, tmp_path: Path) -> None:
        host, ours = Firmware(str(tmp_path / "root")), keys.make(tmp_path, "ours")
        put(host, ours)
        for firmware in ({"pending": [ours]}, {"enrolled": [ours]}):
            keys.firmware(host, **firmware)
            carried_out(host, enrollment.IMPORT)
        assert host.said == []

    def test_a_firmware_that_takes_no_variables_is_told(self, tmp_path: Path) -> None:
        host = Firmware(str(tmp_path / "root"), works=False)
        put(host, keys.make(tmp_path, "ours"))
        with pytest.raises(GpuOpsError, match="ended with 255.*Failed to write MokNew") as caught:
            carried_out(host, enrollment.IMPORT)
        assert caught.value.refusals[0].code == "driver.signing_key_not_imported"
        assert PASSWORD not in str(caught.value.result())


class TestRefusals:
    there = facts(A100, secure_boot=True)

    def codes(self, key: signing.SigningKey, **options: Any) -> List[str]:
        return [refusal.code for refusal in made(World(signing_key=key), policy(**options), self.there).refusals]

    def test_what_the_enrolment_lacks_is_refused_at_once(self) -> None:
        key = signing.SigningKey(lacks=("mokutil",))
        assert self.codes(key, secure_boot="enroll") == [
            "driver.enrollment_without_tools", "driver.enrollment_without_password"]
        assert self.codes(replace(key, state=signing.PENDING), secure_boot="enroll") == []

    @pytest.mark.parametrize("asked, code", [
        ("enroll", "driver.enrollment_impossible"), ("require_signed", "driver.secure_boot_without_key")])
    @pytest.mark.parametrize("state", [signing.UNKNOWN, signing.PENDING])
    def test_a_request_that_nobody_would_answer_is_refused_and_not_advised(
        self, asked: str, code: str, state: str
    ) -> None:
        key = signing.SigningKey(state=state, unenrollable=("a system without shim", "boot by shim"))
        wanted = policy(secure_boot=asked, enrollment_password=PASSWORD)
        refusals = made(World(signing_key=key), wanted, self.there).refusals
        assert [refusal.code for refusal in refusals] == [code]
        assert "a system without shim" in refusals[0].found and refusals[0].remedy.startswith("boot by shim")
        assert "mokutil" not in refusals[0].remedy

    @pytest.mark.parametrize("word", ["stra\u00dfe", "two\nlines", "tab\t", "a" * 257])
    def test_a_password_that_cannot_be_typed_at_the_console_is_refused(self, word: str) -> None:
        with pytest.raises(GpuOpsError) as caught:
            policy(secure_boot="enroll", enrollment_password=word)
        assert caught.value.refusals[0].code == "driver.enrollment_password_malformed"
        assert word not in str(caught.value.result())

    def test_the_password_is_not_shown_with_the_policy(self) -> None:
        assert PASSWORD not in repr(policy(enrollment_password=PASSWORD))
        assert policy(enrollment_password=PASSWORD + "\n").enrollment_password == PASSWORD

    @pytest.mark.parametrize("pair", [
        {"signing_key": "/k"}, {"signing_certificate": "/c"}, {"signing_key": "k", "signing_certificate": "/c"}])
    def test_half_a_pair_is_refused(self, pair: Any) -> None:
        with pytest.raises(GpuOpsError, match="both or neither") as caught:
            policy(**pair)
        assert caught.value.refusals[0].code == "driver.signing_pair_incomplete"

    def test_a_module_that_our_key_has_signed_is_not_built_again_for_the_confirmation(self) -> None:
        key = signing.SigningKey(serial="5e71a1", name="ours", state=signing.PENDING)
        kernel = Kernel("6.1.0-50-amd64", True, "580.178.04", "Dual MIT/GPL", "ours", False, key="5e71a1")
        world = World(signing_key=key)
        world.apply(made(world, policy(secure_boot="enroll"), self.there))
        world.kernels = (kernel,)
        assert [step.action for step in made(world, policy(secure_boot="enroll"), self.there).steps] == []
        world.kernels = (replace(kernel, key="77"),)
        assert [step.action for step in made(world, policy(secure_boot="enroll"), self.there).steps] == ["dkms.build"]


class TestUnheeded:
    """Before 3.0.4 DKMS cannot be told of a key."""

    OLD = "2.8.7-2ubuntu2.2"
    PAIR = ("/etc/keys/fleet.key", "/etc/keys/fleet.der")
    KEY = signing.SigningKey(*SHIM_SIGNED, serial="5e71a1", name="ours", state=signing.ENROLLED)
    there = facts(A100, secure_boot=True)

    def world(self, comes: str = OLD, installed: str = "") -> World:
        return World(dkms=comes, installed={"dkms": installed} if installed else {}, signing_key=self.KEY,
                     facts=self.there)

    def plan(self, world: World, pair: Tuple[str, str] = PAIR, **changes: Any) -> Plan:
        return made(world, policy(signing_key=pair[0], signing_certificate=pair[1], **changes), world.facts)

    @pytest.mark.parametrize("changes", [
        {}, {"secure_boot": "enroll", "enrollment_password": PASSWORD}, {"state": "staged"}])
    @pytest.mark.parametrize("installed", ["", OLD])
    def test_a_key_of_the_policy_is_refused_before_it_comes_or_builds(self, installed: str, changes: Any) -> None:
        plan = self.plan(self.world(installed=installed), **changes)
        (refusal,) = plan.refusals
        assert (refusal.code, refusal.option) == ("driver.signing_key_unheeded", "signing_key") and not plan.steps
        assert self.OLD in refusal.found and self.PAIR[0] in refusal.found
        assert "DKMS 3.0.4 or newer" in refusal.wanted and "MOK.priv" in refusal.remedy

    def test_one_that_has_built_already_is_no_better(self) -> None:
        world = self.world()
        world.apply(made(world, policy(), self.there))
        assert world.kernels[0].trusted and made(world, policy(), self.there) == Plan()
        assert [each.code for each in self.plan(world).refusals] == ["driver.signing_key_unheeded"]

    @pytest.mark.parametrize("installed, comes", [
        ("", "3.0.4-1"), ("", "1:3.2.2-1~deb13u1"), (OLD, "3.0.10-8"), ("3.0.11-1ubuntu13", "3.0.11-1ubuntu13")])
    def test_one_that_can_be_told_is_told(self, installed: str, comes: str) -> None:
        plan = self.plan(self.world(comes, installed))
        assert not plan.refusals and FRAMEWORK_FILE in [step.subject for step in plan.steps]

    def test_its_own_key_is_signed_with_and_unsigned_modules_need_none(self) -> None:
        assert not self.plan(self.world(), SHIM_SIGNED).refusals
        assert not made(self.world(), policy(), self.there).refusals
        assert not self.plan(self.world(), secure_boot="ignore").refusals
        world = self.world()
        world.facts = facts(A100)
        assert not self.plan(world).refusals


@root_only
@needs_modinfo
class TestSigners:
    """Modules with what the kernel's sign-file appends: PKCS#7 without certificates, a trailer, a word."""

    def sign(self, path: Path, pair: keys.Pair) -> None:
        """Linux, scripts/sign-file.c and include/linux/module_signature.h: keys by issuer and serial number."""
        pem = path.parent / "certificate.pem"
        subprocess.run(["openssl", "x509", "-inform", "DER", "-in", str(pair.certificate), "-out", str(pem)],
                       check=True)
        signature = subprocess.run(
            ["openssl", "cms", "-sign", "-binary", "-noattr", "-nocerts", "-md", "sha256", "-signer", str(pem),
             "-inkey", str(pair.key), "-outform", "DER", "-in", str(path)], check=True, capture_output=True).stdout
        pem.unlink()
        trailer = bytes([0, 0, 2, 0, 0, 0, 0, 0]) + len(signature).to_bytes(4, "big")
        path.write_bytes(path.read_bytes() + signature + trailer + b"~Module signature appended~\n")

    def module(self, tmp_path: Path, name: str = "nvidia.ko") -> Path:
        source = tmp_path / "module.c"
        source.write_text('const char info[] __attribute__((section(".modinfo"))) = "version=580.178.04";\n')
        path = tmp_path / name
        subprocess.run(["gcc", "-c", str(source), "-o", str(path)], check=True)
        return path

    def checked(self, host: Host, path: Path, certificate: keys.Pair, exactly: bool = False) -> None:
        host.write_bytes("/certificate", certificate.der)
        step = Step("driver", "dkms.build", "6.1.0-50-amd64", "", parameters={
            "certificate": "/certificate", "exactly": exactly})
        executors.check_signer(host, read_module(host, str(path)), step)

    def test_kmod_names_the_key_as_we_read_it_from_the_certificate(self, tmp_path: Path) -> None:
        ours, path = keys.make(tmp_path, "ours"), self.module(tmp_path)
        self.sign(path, ours)
        read = read_module(Host(), str(path))
        assert (read.signer, read.key) == ("ours", ours.read.serial)

    def test_which_signer_is_taken(self, tmp_path: Path) -> None:
        host, path = Host(str(tmp_path / "root")), self.module(tmp_path)
        ours, theirs = keys.make(tmp_path, "ours"), keys.make(tmp_path, "theirs")
        keys.firmware(host, enrolled=[theirs])
        with pytest.raises(GpuOpsError, match="signed by nobody"):
            self.checked(host, path, ours)
        self.sign(path, ours)
        self.checked(host, path, ours, exactly=True)
        with pytest.raises(GpuOpsError, match="signed by ours with key %s, and no enrolled" % ours.read.serial):
            self.checked(host, path, theirs)
        other = self.module(tmp_path, "nvidia-uvm.ko")
        self.sign(other, theirs)
        self.checked(host, other, ours)
        with pytest.raises(GpuOpsError, match="/certificate is of key %s" % ours.read.serial):
            self.checked(host, other, ours, exactly=True)
