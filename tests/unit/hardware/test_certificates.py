# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""openssl makes the certificates and says what is in them."""
from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Tuple

import pytest
import signing_keys as keys
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.certificates import parse_certificate


def told(certificate: Path, *question: str) -> str:
    done = subprocess.run(["openssl", "x509", "-inform", "DER", "-in", str(certificate), "-noout", *question],
                          check=True, capture_output=True, text=True)
    return done.stdout


def digits(text: str) -> str:
    return re.sub("[^0-9a-f]", "", text.split("=")[-1].lower())


@pytest.mark.parametrize("options", [
    (), ("-set_serial", "0x00a1b2c3"), ("-set_serial", "1"), ("-addext", "extendedKeyUsage=codeSigning"),
    ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"), ("-newkey", "rsa:4096"),
])
def test_what_openssl_says_of_a_certificate_is_read(tmp_path: Path, options: Tuple[str, ...]) -> None:
    made = keys.make(tmp_path, "Schlüssel der Flotte", "-utf8", *options)
    assert made.read.subject == made.read.issuer == "Schlüssel der Flotte"
    assert made.read.serial == digits(told(made.certificate, "-serial")).lstrip("0")
    assert made.read.sha1 == digits(told(made.certificate, "-fingerprint", "-sha1"))
    assert made.read.sha256 == digits(told(made.certificate, "-fingerprint", "-sha256"))
    assert made.read.key_id == digits(told(made.certificate, "-ext", "subjectKeyIdentifier").splitlines()[-1])


def test_pem_is_the_same_certificate(tmp_path: Path) -> None:
    made = keys.make(tmp_path, "ours")
    pem = subprocess.run(["openssl", "x509", "-inform", "DER", "-in", str(made.certificate)], check=True,
                         capture_output=True).stdout
    assert parse_certificate(b"some words before it\n" + pem) == made.read


def test_an_issuer_is_told_from_a_subject(tmp_path: Path) -> None:
    authority = keys.make(tmp_path, "authority")
    request, signed = tmp_path / "request", tmp_path / "signed"
    subprocess.run(["openssl", "req", "-new", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=signer", "-keyout",
                    str(tmp_path / "key"), "-out", str(request)], check=True, capture_output=True)
    subprocess.run(["openssl", "x509", "-req", "-in", str(request), "-CA", str(authority.certificate), "-CAform", "DER",
                    "-CAkey", str(authority.key), "-set_serial", "7", "-outform", "DER", "-out", str(signed)],
                   check=True, capture_output=True)
    read = parse_certificate(signed.read_bytes())
    assert (read.subject, read.issuer, read.serial) == ("signer", "authority", "7")


def test_every_cut_of_a_certificate_is_an_error(tmp_path: Path) -> None:
    der = keys.make(tmp_path, "ours").der
    for end in range(len(der)):
        with pytest.raises(ValueError):
            parse_certificate(der[:end])
    with pytest.raises(ValueError, match="1 bytes follow"):
        parse_certificate(der + b"\0")


@given(st.binary(max_size=80))
def test_what_is_no_certificate_is_an_error_and_no_other_one(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_certificate(data)


def test_an_empty_extension_is_passed_over() -> None:
    place = SAMPLE.index(bytes.fromhex("301d0603551d0e"))
    empty, another = bytes.fromhex("3000"), bytes.fromhex("301b0419") + bytes(0x19)
    assert parse_certificate(SAMPLE[:place] + empty + another + SAMPLE[place + 0x1f:]).key_id == ""


@given(st.data())
def test_a_spoiled_certificate_is_read_or_an_error(data: st.DataObject) -> None:
    der = bytearray(SAMPLE)
    der[data.draw(st.integers(0, len(der) - 1))] = data.draw(st.integers(0, 255))
    try:
        parse_certificate(bytes(der))
    except ValueError:
        pass


# Made with openssl for this test alone: CN=sample, an elliptic key
SAMPLE = bytes.fromhex(
    "308201773082011da00302010202145c43b92a5c2a35f217b618f0cdf859f1304849b8300a06082a8648ce3d040302301131"
    "0f300d06035504030c0673616d706c65301e170d3236313132343032353535305a170d3336313132313032353535305a3011"
    "310f300d06035504030c0673616d706c653059301306072a8648ce3d020106082a8648ce3d0301070342000401eeb2da5b99"
    "7a2945b2a2d59ddfe633994a6faa62f5ac67e3e761836101a6868c1a39a044b39aa147cd8e77bb35ee6f620fbefa9651612e"
    "38cb875c6ed351d9a3533051301d0603551d0e04160414ce07b3088d024e37e7e7d4aabbb7d31f59cd8ff3301f0603551d23"
    "041830168014ce07b3088d024e37e7e7d4aabbb7d31f59cd8ff3300f0603551d130101ff040530030101ff300a06082a8648"
    "ce3d0403020348003045022100d0b969c3f1c4bb5ad33d75f0d803231e83dcfbe59ac96723d9f4614f4ed4c59a02203da485"
    "5b6dd907ed50cc177ea41f8e3faccfe6023dbd8de73690658e9ae0607f")
