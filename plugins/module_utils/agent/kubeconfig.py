# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A kubeconfig as a kubelet has it, read without a library. Pure.

Kubeadm, k3s, RKE2, EKS and the kubelet write theirs with mappings and lists in blocks, and plain or quoted words. That
much of YAML is read here, and JSON; anything else is refused.

A program that fetches a credential, as on EKS and GKE, is asked as client-go asks it (kubernetes,
staging/src/k8s.io/client-go/plugin/pkg/client/auth/exec/exec.go).
"""
from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

# Of an ExecCredential; its first form is gone since Kubernetes 1.24
_CREDENTIALS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_OF_NODE = "system:node:"
# Of a certificate in DER: commonName (2.5.4.3), then a string, whose length is one byte for a name of a node
_COMMON_NAME = re.compile(rb"\x06\x03\x55\x04\x03[\x0c\x13\x14\x16](.)", re.DOTALL)
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----\s*(.*?)-----END CERTIFICATE-----", re.DOTALL)
_KEY = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'#\[\]{},&*!|>%@`-][^:#]*?|-[^\s:#][^:#]*?)\s*:(?:\s+(.*))?$""")
_EMPTY: Dict[str, Any] = {"": None, "~": None, "null": None, "{}": {}, "[]": []}


class Unreadable(ValueError):
    """What in a kubeconfig cannot be followed."""


@dataclass(frozen=True)
class Source:
    """What stands in a kubeconfig, or in a file that it names. data: base64."""

    data: str = ""
    path: str = ""

    def __bool__(self) -> bool:
        return bool(self.data or self.path)

    def content(self) -> bytes:
        """Of one that stands there."""
        try:
            return base64.b64decode(self.data, validate=True)
        except (ValueError, binascii.Error) as error:
            raise Unreadable("data that is no base64") from error


@dataclass(frozen=True)
class Login:
    """A program that fetches a credential. environment: what it gets beside its own. hint: how it is installed."""

    argv: Tuple[str, ...]
    environment: Mapping[str, str]
    version: str
    hint: str = ""


@dataclass(frozen=True)
class Credential:
    """What one is known by. token: itself. certificate, key: PEM."""

    token: str = ""
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Access:
    """An API server, and who one is there.

    server_name: that its certificate is to have, '' for that of the address.
    verifies:    whether it has to have one that the authority has signed.
    token:       itself; token_file: where it lies, which is read at each use.
    login:       who fetches a credential, in place of all of these; None where nobody does.
    """

    server: str
    authority: Source = Source()
    server_name: str = ""
    verifies: bool = True
    certificate: Source = Source()
    key: Source = Source()
    token: str = ""
    token_file: str = ""
    login: Optional[Login] = None


def access_of(text: str) -> Access:
    """What the current context of a kubeconfig says. Raises Unreadable."""
    document = _document(text)
    context = _named(document, "context", document.get("current-context"))
    cluster = _named(document, "cluster", context.get("cluster"))
    user = _named(document, "user", context.get("user"))
    if user.get("auth-provider"):
        raise Unreadable("a user of an auth-provider, which no Kubernetes since 1.26 knows")
    access = Access(
        server=_text(cluster, "server"), authority=_source(cluster, "certificate-authority"),
        server_name=_text(cluster, "tls-server-name"), verifies=not _is_true(cluster, "insecure-skip-tls-verify"),
        certificate=_source(user, "client-certificate"), key=_source(user, "client-key"),
        token=_text(user, "token"), token_file=_text(user, "tokenFile"),
        login=_login(user["exec"], cluster) if user.get("exec") else None)
    if not access.server:
        raise Unreadable("no server")
    if access.login is None and not (access.certificate and access.key) and not (access.token or access.token_file):
        raise Unreadable("a user without a certificate and without a token")
    return access


def credential_of(text: str, version: str) -> Credential:
    """What a program that fetches a credential has printed. Raises Unreadable, without a word of what it is."""
    try:
        found = json.loads(text)
        kind, said, status = found["kind"], found["apiVersion"], found["status"]
        words = [status.get(key) or "" for key in ("token", "clientCertificateData", "clientKeyData")]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unreadable("an answer that is no ExecCredential") from error
    if kind != "ExecCredential" or said != version:
        raise Unreadable("an answer that is no ExecCredential of %s" % version)
    if not all(isinstance(word, str) for word in words) or not (words[0] or (words[1] and words[2])):
        raise Unreadable("an ExecCredential without a token and without a certificate and its key")
    return Credential(words[0], words[1].encode(), words[2].encode())


def node_of_certificate(pem: str) -> str:
    """The node that a client certificate is of, '' where it is of none."""
    for block in _PEM.findall(pem)[:1]:
        try:
            der = base64.b64decode("".join(block.split()))
        except (ValueError, binascii.Error):
            return ""
        for found in _COMMON_NAME.finditer(der):
            name = der[found.end():found.end() + found.group(1)[0]].decode("ascii", "replace")
            if name.startswith(_OF_NODE):
                return name[len(_OF_NODE):]
    return ""


def node_of_token(token: str) -> str:
    """The node that a token of a service account is bound to, '' where it is to none."""
    part = token.split(".")[1:2]
    try:
        claims = json.loads(base64.urlsafe_b64decode(part[0] + "=" * (-len(part[0]) % 4)))
        return str(claims["kubernetes.io"]["node"]["name"])
    except (ValueError, IndexError, KeyError, TypeError, binascii.Error):
        return ""


def _named(document: Dict[str, Any], kind: str, name: Any) -> Dict[str, Any]:
    entries = document.get(kind + "s")
    for each in entries if isinstance(entries, list) else ():
        if isinstance(each, dict) and each.get("name") == name and isinstance(each.get(kind), dict):
            return dict(each[kind])
    raise Unreadable("no %s %s" % (kind, name))


def _text(part: Dict[str, Any], key: str) -> str:
    found = part.get(key)
    if isinstance(found, (dict, list)):
        raise Unreadable("a %s that is no text" % key)
    return "" if found is None else str(found)


def _is_true(part: Dict[str, Any], key: str) -> bool:
    return _text(part, key).lower() == "true"


def _source(part: Dict[str, Any], key: str) -> Source:
    return Source(_text(part, key + "-data"), _text(part, key))


def _login(found: Any, cluster: Dict[str, Any]) -> Login:
    if not isinstance(found, dict) or not _text(found, "command"):
        raise Unreadable("an exec without a command")
    version = _text(found, "apiVersion")
    if version not in _CREDENTIALS:
        raise Unreadable("an exec of apiVersion '%s', not of %s" % (version, " or ".join(_CREDENTIALS)))
    if _text(found, "interactiveMode") == "Always":
        raise Unreadable("an exec that has to ask a person")
    words, variables = found.get("args") or [], found.get("env") or []
    if not isinstance(words, list) or not isinstance(variables, list) or any(
            isinstance(word, (dict, list)) for word in words) or not all(isinstance(it, dict) for it in variables):
        raise Unreadable("an exec with args or env in another form than a list")
    spec: Dict[str, Any] = {"interactive": False}
    if _is_true(found, "provideClusterInfo"):
        spec["cluster"] = {key: cluster[key] for key in (
            "server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data") if key in cluster}
    environment = {_text(it, "name"): _text(it, "value") for it in variables}
    asked = {"kind": "ExecCredential", "apiVersion": version, "spec": spec}
    environment["KUBERNETES_EXEC_INFO"] = json.dumps(asked)
    argv = (_text(found, "command"), *("" if word is None else str(word) for word in words))
    return Login(argv, environment, version, _text(found, "installHint"))


# As much of YAML


def _document(text: str) -> Dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = _Lines(text).document()
    if not isinstance(found, dict):
        raise Unreadable("no mapping")
    return found


class _Lines:
    """Lines that say something, each with its depth and its number."""

    def __init__(self, text: str) -> None:
        self._left: List[Tuple[int, str, int]] = []
        for number, line in enumerate(text.splitlines(), 1):
            content = line.strip()
            if not content or content.startswith("#") or (content == "---" and not self._left):
                continue
            if "\t" in line[:len(line) - len(line.lstrip())]:
                raise Unreadable("line %d: a tabulator" % number)
            self._left.append((len(line) - len(line.lstrip(" ")), content, number))

    def document(self) -> Any:
        found = self._block(self._left[0][0]) if self._left else None
        if self._left:
            raise self._refused()
        return found

    def _block(self, depth: int) -> Any:
        return self._list(depth) if self._is_item(depth) else self._mapping(depth)

    def _is_item(self, depth: int) -> bool:
        return bool(self._left) and self._left[0][0] == depth and (
            self._left[0][1] == "-" or self._left[0][1].startswith("- "))

    def _list(self, depth: int) -> List[Any]:
        found = []
        while self._is_item(depth):
            _depth, content, number = self._left.pop(0)
            rest = content[1:].lstrip()
            if not rest:
                found.append(self._below(depth))
            elif _KEY.match(rest):
                # What follows the dash begins a mapping there
                deeper = depth + len(content) - len(rest)
                self._left.insert(0, (deeper, rest, number))
                found.append(self._mapping(deeper))
            else:
                found.append(_scalar(rest, number))
        return found

    def _mapping(self, depth: int) -> Dict[str, Any]:
        found: Dict[str, Any] = {}
        while self._left and self._left[0][0] == depth and not self._is_item(depth):
            match = _KEY.match(self._left[0][1])
            if match is None:
                raise self._refused()
            number = self._left.pop(0)[2]
            key, rest = str(_scalar(match.group(1), number)), match.group(2) or ""
            if key in found:
                raise Unreadable("line %d: %s for the second time" % (number, key))
            if rest and not rest.startswith("#"):
                found[key] = _scalar(rest, number)
            elif self._is_item(depth):
                # Go writes a list as deep as the key that it is of
                found[key] = self._list(depth)
            else:
                found[key] = self._below(depth)
        return found

    def _below(self, depth: int) -> Any:
        return self._block(self._left[0][0]) if self._left and self._left[0][0] > depth else None

    def _refused(self) -> Unreadable:
        return Unreadable("line %d is written in a way that is not read here" % self._left[0][2])


def _scalar(text: str, number: int) -> Any:
    if text[:1] in "\"'":
        quoted, rest = _quoted(text)
        if quoted is None or (rest and not rest.startswith("#")):
            raise Unreadable("line %d: a quotation that does not end" % number)
        return quoted
    plain = re.split(r"\s#", text, maxsplit=1)[0].strip()
    if plain in _EMPTY:
        return _EMPTY[plain]
    if plain[0] in "[]{},&*!|>%@`":
        raise Unreadable("line %d is written in a way that is not read here" % number)
    return plain


def _quoted(text: str) -> Tuple[Optional[str], str]:
    """(what a quotation says, None where it does not end; what follows it)."""
    pattern = r'"(?:[^"\\]|\\.)*"' if text[0] == '"' else r"'(?:[^']|'')*'"
    match = re.match(pattern, text)
    if match is None:
        return None, ""
    try:
        word = json.loads(match.group()) if text[0] == '"' else match.group()[1:-1].replace("''", "'")
    except ValueError:
        return None, ""
    return str(word), text[match.end():].strip()
