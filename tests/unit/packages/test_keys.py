# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is checked of a key file is all that apt will trust by it."""
from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openpgp_keys import WITH_SUBKEY
from scratch_apt import keyring

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import keys

FINGERPRINT = "4FE8365B97B556F9AF3F8A4BF3313910243288CB"


def dearmoured(text: str) -> bytes:
    lines = text.strip().splitlines()
    return base64.b64decode("".join(line for line in lines[lines.index("") + 1:-1] if not line.startswith("=")))


def test_a_key_with_its_subkeys_is_one_key() -> None:
    assert keys.objection(WITH_SUBKEY, FINGERPRINT) == ""
    assert keys.objection(WITH_SUBKEY, FINGERPRINT[-8:]) == ""
    assert FINGERPRINT in keys.objection(WITH_SUBKEY, "0" + FINGERPRINT[-7:])
    assert keys.read(dearmoured(WITH_SUBKEY)) == keys.read(WITH_SUBKEY.encode())


@pytest.mark.parametrize("text", [
    "%(good)s%(bad)s", "%(bad)s%(good)s", "%(good)sa word between\n%(bad)s", "%(joined)s",
])
def test_a_second_key_is_found_wherever_it_stands(text: str) -> None:
    bad = keyring("two").public
    joined = keys._armour(dearmoured(WITH_SUBKEY) + dearmoured(bad))
    told = keys.objection(text % {"good": WITH_SUBKEY, "bad": bad, "joined": joined}, FINGERPRINT)
    assert told.startswith("2 keys in one file: ")
    assert FINGERPRINT in told and keyring("two").fingerprint in told


def test_another_key_is_named() -> None:
    assert keys.objection(keyring("two").public, FINGERPRINT) == \
        "a key with fingerprint %s" % keyring("two").fingerprint


@pytest.mark.parametrize("data", [
    b"", b"<html>log in</html>", WITH_SUBKEY.encode()[:200],
    dearmoured(WITH_SUBKEY)[:-3], dearmoured(WITH_SUBKEY) + b"\0",
    WITH_SUBKEY.replace("PUBLIC KEY", "PRIVATE KEY").encode(), WITH_SUBKEY.replace("mDME", "mD\u00e9E").encode(),
    dearmoured(WITH_SUBKEY) + b"\xb4\x01a" + b"\xcb\x03bhi",
], ids=range(8))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(GpuOpsError, match="no OpenPGP public key"):
        keys.read(data)


def test_gpg_sees_in_what_is_written_exactly_the_keys_that_were_checked(tmp_path: Path) -> None:
    two = keyring("two").public
    text = "# a comment\n" + two.replace("BLOCK-----\n\n", "BLOCK-----\nVersion: 1\n\n", 1) + "\nmore\n" + WITH_SUBKEY
    read = keys.read(text.encode())
    (tmp_path / "key.asc").write_text(read.armoured)
    told = subprocess.run(["gpg", "--homedir", str(tmp_path), "--batch", "--with-colons", "--show-keys",
                           str(tmp_path / "key.asc")], capture_output=True, text=True, check=True).stdout.splitlines()
    primary = [told[number + 1].split(":")[9] for number, line in enumerate(told) if line.startswith("pub")]
    assert tuple(primary) == read.fingerprints == (keyring("two").fingerprint, FINGERPRINT)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reading(data: bytes) -> None:
    for text in (data, ("%s\n\n%s\n%s\n" % (keys.BEGIN, base64.b64encode(data).decode(), keys.END)).encode()):
        try:
            assert keys.read(text).fingerprints
        except GpuOpsError as error:
            assert "no OpenPGP public key" in error.found
