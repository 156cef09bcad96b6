# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The certificate authority of one lab: everything that speaks to the API server proves who it is by it."""
from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from .processes import run

DAYS = "3650"


@dataclass(frozen=True)
class Credential:
    certificate: Path
    key: Path


class Authority:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certificate = directory / "ca.crt"
        self.key = directory / "ca.key"

    def create(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        if not self.certificate.is_file():
            self._request(self.certificate, self.key, "/CN=gpulab-ca", [
                "-addext", "basicConstraints=critical,CA:TRUE",
                "-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"])

    def issue(self, name: str, user: str, group: str = "", alternatives: Sequence[str] = ()) -> Credential:
        """A certificate for the user of that name (and, with alternatives, for a server at those names)."""
        credential = Credential(self.directory / ("%s.crt" % name), self.directory / ("%s.key" % name))
        if not credential.certificate.is_file():
            options = ["-CA", str(self.certificate), "-CAkey", str(self.key),
                       "-addext", "basicConstraints=critical,CA:FALSE",
                       "-addext", "extendedKeyUsage=clientAuth%s" % (",serverAuth" if alternatives else "")]
            if alternatives:
                options += ["-addext", "subjectAltName=%s" % ",".join(alternatives)]
            self._request(credential.certificate, credential.key,
                          "%s/CN=%s" % ("/O=%s" % group if group else "", user), options)
        return credential

    def signing_key(self, name: str) -> Path:
        """A bare private key, for service account tokens."""
        key = self.directory / ("%s.key" % name)
        if not key.is_file():
            scratch = key.with_suffix(".new")
            run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", scratch])
            scratch.replace(key)
        return key

    def kubeconfig(self, path: Path, server: str, credential: Credential, user: str) -> Path:
        """JSON is YAML: kubeconfig readers accept it."""
        cluster = {"server": server, "certificate-authority-data": _inline(self.certificate)}
        identity = {"client-certificate-data": _inline(credential.certificate),
                    "client-key-data": _inline(credential.key)}
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "gpulab",
            "clusters": [{"name": "gpulab", "cluster": cluster}],
            "users": [{"name": user, "user": identity}],
            "contexts": [{"name": "gpulab", "context": {"cluster": "gpulab", "user": user}}],
        }
        scratch = path.with_suffix(".new")
        scratch.touch(mode=0o600)
        scratch.write_text(json.dumps(document, indent=2) + "\n")
        scratch.replace(path)
        return path

    def _request(self, certificate: Path, key: Path, subject: str, options: Sequence[str]) -> None:
        """Key and certificate in one step; the certificate appears last, so its presence means that both are whole."""
        scratch = certificate.with_suffix(".new")
        run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", DAYS, "-subj", subject, "-keyout", key, "-out", scratch, *options])
        scratch.replace(certificate)


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
