# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kubeconfigs as kubeadm, k3s, RKE2 and people write them, compared with what a whole YAML library reads."""
from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any, Dict

import pytest
import yaml

from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.kubeconfig import (
    Source,
    Unreadable,
    _document,
    access_of,
    credential_of,
    node_of_certificate,
    node_of_token,
)

KUBEADM = """\
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: LS0tLS1CRUdJTg==
    server: https://10.0.0.1:6443
  name: default-cluster
contexts:
- context:
    cluster: default-cluster
    namespace: default
    user: default-auth
  name: default-context
current-context: default-context
kind: Config
preferences: {}
users:
- name: default-auth
  user:
    client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem
    client-key: /var/lib/kubelet/pki/kubelet-client-current.pem
"""
K3S = """\
---
# Made at the start
apiVersion: v1
kind: Config
clusters:
  - name: local
    cluster:
        server: "https://127.0.0.1:6443"  # the load balancer
        certificate-authority: '/var/lib/rancher/k3s/agent/server-ca.crt'
contexts:
  -
    context:
      user: user
      cluster: local
    name: Default
users:
  - user: {}
    name: nobody
  - user:
      client-key: client-kubelet.key
      client-certificate: client-kubelet.crt
    name: user
current-context: Default
"""
TOKEN = KUBEADM.replace("client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem", "tokenFile: /t").replace(
    "    client-key: /var/lib/kubelet/pki/kubelet-client-current.pem\n", "")

EKS = """\
apiVersion: v1
kind: Config
clusters:
  - name: kubernetes
    cluster:
      certificate-authority: /etc/kubernetes/pki/ca.crt
      server: https://0123456789.gr7.eu-west-3.eks.amazonaws.com
current-context: kubelet
contexts:
  - name: kubelet
    context:
      cluster: kubernetes
      user: kubelet
users:
  - name: kubelet
    user:
      exec:
        apiVersion: client.authentication.k8s.io/v1beta1
        command: aws
        env:
          - name: AWS_ROLE
            value: "arn:aws:iam::1:role/a"
        args:
          - "eks"
          - get-token
          - --cluster-name
          - paris
"""


@pytest.mark.parametrize("text", [KUBEADM, K3S, TOKEN, EKS, json.dumps(yaml.safe_load(KUBEADM))])
def test_it_reads_what_a_whole_library_reads(text: str) -> None:
    assert _document(text) == yaml.safe_load(text)


def test_who_and_where_is_that_of_the_current_context() -> None:
    found = access_of(KUBEADM)
    assert (found.server, found.authority) == ("https://10.0.0.1:6443", Source(data="LS0tLS1CRUdJTg=="))
    assert found.key == Source(path="/var/lib/kubelet/pki/kubelet-client-current.pem") and found.verifies
    assert access_of(K3S).certificate == Source(path="client-kubelet.crt")
    assert access_of(TOKEN).token_file == "/t"


@pytest.mark.parametrize("text", [
    "", "[]", "a", "{", "a: &x 1", "a: |\n  text", "a: [1, 2]", "a: {b: 1}", "a:\n\tb: 1", "a: 'x", "a: 1\na: 2",
    "a: 1\n  b: 2", "- a\nb: 1", "a: !tag 1", "a: *x", KUBEADM.replace("current-context: default-context\n", ""),
    KUBEADM.replace("name: default-auth", "name: other"), KUBEADM.replace("    server: https://10.0.0.1:6443\n", ""),
    KUBEADM.replace("    client-key: /var/lib/kubelet/pki/kubelet-client-current.pem\n", ""),
    *(EKS.replace(before, after) for before, after in (
        ("command: aws", "command:"), ("k8s.io/v1beta1", "k8s.io/v1alpha1"), ("command: aws", "command: {a: b}"),
        ("command: aws", "command: aws\n        interactiveMode: Always"), ("- paris", "- a: b"),
        ("          - name: AWS_ROLE\n            value:", "          -"), ("exec:", "auth-provider:")))])
def test_what_cannot_be_followed_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        access_of(text)


def test_a_program_that_fetches_a_credential_gets_what_client_go_gives_it() -> None:
    login = access_of(EKS).login
    assert login is not None and login.argv == ("aws", "eks", "get-token", "--cluster-name", "paris")
    told = json.loads(login.environment["KUBERNETES_EXEC_INFO"])
    assert login.environment["AWS_ROLE"] == "arn:aws:iam::1:role/a" and told == {
        "kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1", "spec": {"interactive": False}}
    more = access_of(EKS.replace("command: aws", "command: aws\n        provideClusterInfo: true")).login
    assert more is not None and json.loads(more.environment["KUBERNETES_EXEC_INFO"])["spec"]["cluster"] == {
        "server": "https://0123456789.gr7.eu-west-3.eks.amazonaws.com"}


V1 = "client.authentication.k8s.io/v1"


@pytest.mark.parametrize("answer", [
    "", "[]", "{}", {"kind": "Status"}, {"apiVersion": V1 + "beta1"}, {"status": None}, {"status": {}},
    {"status": {"token": 1}}, {"status": {"clientCertificateData": "a"}}])
def test_what_is_no_credential_is_refused_and_not_repeated(answer: Any) -> None:
    text = answer if isinstance(answer, str) else json.dumps({
        "kind": "ExecCredential", "apiVersion": V1, "status": {"token": "a-secret"}, **answer})
    with pytest.raises(Unreadable) as caught:
        credential_of(text, V1)
    assert "secret" not in str(caught.value)


def test_no_file_that_was_cut_short_is_followed_elsewhere() -> None:
    whole = access_of(KUBEADM)
    for length in range(len(KUBEADM)):
        try:
            found = access_of(KUBEADM[:length])
        except Unreadable:
            continue
        assert (found.server, found.authority, found.certificate) == (whole.server, whole.authority, whole.certificate)


def certificate(directory: Path, subject: str) -> str:
    path = directory / "c.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-subj", subject, "-keyout", str(directory / "k.pem"), "-out", str(path)], check=True,
                   stderr=subprocess.DEVNULL)
    return path.read_text()


@pytest.mark.parametrize("subject, wanted", [
    ("/O=system:nodes/CN=system:node:gpu-1.example", "gpu-1.example"), ("/CN=system:node:" + "n" * 40, "n" * 40),
    ("/O=system:masters/CN=admin", ""), ("/O=system:node:no/CN=kubernetes", "")])
def test_a_certificate_tells_its_node(tmp_path: Path, subject: str, wanted: str) -> None:
    assert node_of_certificate(certificate(tmp_path, subject)) == wanted


@pytest.mark.parametrize("pem", ["", "no certificate", "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----"])
def test_what_is_no_certificate_tells_none(pem: str) -> None:
    assert node_of_certificate(pem) == ""


def token(claims: Any) -> str:
    return ".".join(base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=")
                    for each in ({"alg": "RS256"}, claims)) + ".c2ln"


@pytest.mark.parametrize("claims, wanted", [
    ({"kubernetes.io": {"node": {"name": "gpu-1"}}}, "gpu-1"), ({"kubernetes.io": {"pod": {"name": "p"}}}, ""),
    ({}, ""), ([], ""), (7, "")])
def test_a_token_tells_the_node_that_it_is_bound_to(claims: Dict[str, Any], wanted: str) -> None:
    assert node_of_token(token(claims)) == wanted


@pytest.mark.parametrize("text", ["", "opaque", "a.b", "a.!.c", "ü.ü.ü"])
def test_what_is_no_such_token_tells_none(text: str) -> None:
    assert node_of_token(text) == ""
