# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from pathlib import Path
from typing import Mapping

import pytest
import signing_keys as keys

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import secure_boot
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.boot import Module
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import pending_signer

ON, OFF = b"\x01", b"\x00"
DATABASE = "d719b2cb-3d3a-4596-a3bc-dad00e67656f"


@pytest.fixture(name="host")
def _host(tmp_path: Path) -> Host:
    return Host(str(tmp_path / "root"))


@pytest.mark.parametrize("variables, kernel, signed", [
    ({}, {}, False),
    ({"SecureBoot": ON}, {}, True),
    ({"SecureBoot": OFF}, {}, False),
    ({"SecureBoot": ON, "SetupMode": ON}, {}, False),
    ({"SecureBoot": ON, "SetupMode": OFF}, {}, True),
    # mokutil --disable-validation: the kernel takes it for off
    ({"SecureBoot": ON, "MokSBStateRT": ON}, {}, False),
    ({}, {secure_boot.SIGNATURES_ENFORCED: "Y\n"}, True),
    ({}, {secure_boot.SIGNATURES_ENFORCED: "N\n"}, False),
    ({}, {secure_boot.LOCKDOWN: "none [integrity] confidentiality\n"}, True),
    ({}, {secure_boot.LOCKDOWN: "[none] integrity confidentiality\n"}, False),
])
def test_whether_modules_must_be_signed(
    host: Host, variables: Mapping[str, bytes], kernel: Mapping[str, str], signed: bool
) -> None:
    for name, value in variables.items():
        keys.variable(host, name, value, keys.SHIM if name.startswith("Mok") else keys.GLOBAL)
    for path, text in kernel.items():
        host.write(path, text)
    assert secure_boot.modules_must_be_signed(host) is signed


def test_enrolled_and_pending_keys_are_told_apart(host: Host, tmp_path: Path) -> None:
    vendor, ours = keys.make(tmp_path, "vendor"), keys.make(tmp_path, "ours")
    keys.firmware(host, enrolled=[vendor], pending=[ours])
    found = secure_boot.firmware_keys(host)
    assert (found.enrolled, found.pending, found.readable) == ((vendor.read,), (ours.read,), True)


def test_keys_of_the_firmwares_own_database_count(host: Host, tmp_path: Path) -> None:
    cloud = keys.make(tmp_path, "of the image")
    keys.variable(host, "db", keys.signature_list([cloud.der]), DATABASE)
    assert secure_boot.firmware_keys(host).enrolled == (cloud.read,)


def test_the_table_of_the_kernel_has_what_is_too_long_for_a_variable(host: Host, tmp_path: Path) -> None:
    first, second = keys.make(tmp_path, "first"), keys.make(tmp_path, "second")
    keys.firmware(host, enrolled=[first])
    host.write_bytes(secure_boot.MOK_TABLE, keys.signature_list([first.der, second.der]))
    assert secure_boot.firmware_keys(host).enrolled == (first.read, second.read)


def test_a_request_that_was_cut_off_before_its_password_is_none(host: Host, tmp_path: Path) -> None:
    keys.firmware(host, pending=[keys.make(tmp_path, "ours")])
    host.remove(keys.VARIABLES + "MokAuth-" + keys.SHIM)
    assert secure_boot.firmware_keys(host).pending == ()


def test_without_variables_nothing_tells_who_may_sign(host: Host) -> None:
    assert not secure_boot.firmware_keys(host).readable


def test_hashes_rubbish_and_a_cut_list_are_passed_over(tmp_path: Path) -> None:
    ours = keys.make(tmp_path, "ours")
    hashes = bytes(16) + b"".join(number.to_bytes(4, "little") for number in (28 + 48, 0, 48)) + bytes(48)
    whole = keys.signature_list([ours.der])
    assert list(secure_boot.signature_list(hashes + keys.signature_list([b"no certificate"]) + whole)) == [ours.read]
    for end in range(len(whole)):
        assert not list(secure_boot.signature_list(whole[:end]))


def test_the_signer_of_a_module_is_pending_by_its_key_and_not_by_its_name(host: Host, tmp_path: Path) -> None:
    ours = keys.make(tmp_path, "DKMS module signing key")
    keys.firmware(host, pending=[ours])
    name = "DKMS module signing key"
    assert pending_signer(host, Module("/x.ko", "580", "NVIDIA", name, ours.read.serial)) == name
    assert pending_signer(host, Module("/x.ko", "580", "NVIDIA", name, "77")) == ""
    assert pending_signer(host, Module()) == ""
