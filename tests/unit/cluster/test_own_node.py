# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host tells of its GPUs with its kubelet's credential, to a real API server that keeps each node to its own object.
"""
from __future__ import annotations

import base64
import itertools
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import pytest
import yaml
from documentation import example
from real_api import RealApi, node
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.agent import api as speaking
from ansible_collections.gpuops.nvidia.plugins.module_utils.agent import telling
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import ApiError, Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.claims import claims, cordoned_by_others
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import (
    CORDONED_BY,
    HEALTH_CORDON,
    HEALTH_MANAGER,
    HOLD,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core import boot_record
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.waiting import wait_for
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.state import SUMMARY

DETECTOR, TOKEN = (REPOSITORY / "docs" / name for name in ("node-problem-detector.yaml", "node-agent-token.yaml"))
_RBAC, _ADMISSION = ("/apis/%s/v1" % group for group in ("rbac.authorization.k8s.io", "admissionregistration.k8s.io"))
# All but the DaemonSet, for which there is no kubelet
PLACES = {"Namespace": "/api/v1/namespaces", "ServiceAccount": "/api/v1/namespaces/%(namespace)s/serviceaccounts",
          "ClusterRole": _RBAC + "/clusterroles", "ClusterRoleBinding": _RBAC + "/clusterrolebindings",
          "Role": _RBAC + "/namespaces/%(namespace)s/roles",
          "RoleBinding": _RBAC + "/namespaces/%(namespace)s/rolebindings",
          "ValidatingAdmissionPolicy": _ADMISSION + "/validatingadmissionpolicies",
          "ValidatingAdmissionPolicyBinding": _ADMISSION + "/validatingadmissionpolicybindings"}
CONFIG = "/etc/kubernetes/kubelet.conf"
SICK = {"key": "gpu GPU-0 xid 79", "kind": "sick", "named": "GPU 0000:3b:00.0 (GPU-0)", "code": "xid 79",
        "text": "the GPU has fallen off the bus", "to_do": "reboot the node", "check": ""}
NUMBERS = itertools.count(1)
NAMES = ("GpuSick", "GpuResetPending", "GpuWarning")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    found = RealApi(tmp_path_factory.mktemp("server"), nodes=True)
    try:
        found.start()
        yield found
    finally:
        found.stop()


class Bed:
    """A host, and its Node as the one who may do everything sees it."""

    def __init__(self, server: RealApi, root: Path, name: str) -> None:
        self.server, self.name, self.client = server, name, server.client()
        self.path = "/api/v1/nodes/" + name
        self.client.create("/api/v1/nodes", node(name))
        self.host = Host(str(root))
        self.has(server.kubelet(name).read_text())

    def has(self, kubeconfig: str) -> None:
        self.host.write(CONFIG, kubeconfig, 0o600)

    def looks(self, *findings: Dict[str, Any]) -> None:
        self.host.write(SUMMARY, json.dumps({
            "schema": 1, "boot": self.host.boot(), "looked": time.time(), "findings": findings, "unknown": []}))

    def tells(self, *findings: Dict[str, Any], cordons: bool = True, **more: Any) -> Dict[str, Any]:
        self.looks(*findings)
        return telling.tell(self.host, CONFIG, 300, cordons, **more)

    @property
    def node(self) -> Dict[str, Any]:
        return self.client.get(self.path)

    @property
    def conditions(self) -> Dict[str, str]:
        return {each["type"]: each["status"] for each in self.node["status"]["conditions"]}

    @property
    def is_cordoned(self) -> bool:
        return bool(self.node["spec"].get("unschedulable"))

    @property
    def taints(self) -> List[str]:
        return [each["key"] for each in self.node["spec"].get("taints") or ()]

    def cordon(self, unschedulable: Optional[bool] = True) -> None:
        """As kubectl does."""
        self.client.patch(self.path, {"spec": {"unschedulable": unschedulable}})


@pytest.fixture
def bed(server: RealApi, tmp_path: Path) -> Bed:
    return Bed(server, tmp_path, "gpu-%d" % next(NUMBERS))


def test_a_sick_host_is_seen_and_cordoned_and_comes_back(bed: Bed) -> None:
    """With nothing but what a kubelet has on its disk, and without touching a taint."""
    before = bed.taints
    assert before == ["node.kubernetes.io/not-ready"], "of the server, and of no field manager"
    assert bed.tells()["changed"] and bed.conditions == {"Ready": "True", **dict.fromkeys(NAMES, "False")}
    assert not bed.is_cordoned
    told = bed.tells(SICK)
    assert (told["node"], told["cordoned"]) == (bed.name, True) and bed.is_cordoned
    assert bed.conditions["GpuSick"] == "True"
    assert "fallen off the bus" in bed.node["metadata"]["annotations"][HEALTH_CORDON]
    assert bed.tells(SICK)["changed"] is False
    assert bed.tells()["cordoned"] is False
    assert not bed.is_cordoned and bed.conditions["GpuSick"] == "False" and bed.taints == before
    assert not any("gpuops" in key for key in bed.node["metadata"].get("annotations") or ())


def test_a_boot_that_has_failed_takes_the_node_out_and_the_reason_is_seen(bed: Bed) -> None:
    boot_record.end(bed.host, 0, boot_record.FAILED, "GPU 3 is ill")
    telling.tell(bed.host, CONFIG, 300, True)
    told = next(each for each in bed.node["status"]["conditions"] if each["type"] == "GpuSick")
    assert (told["status"], told["reason"]) == ("True", "GpuHostNotValidated") and "GPU 3 is ill" in told["message"]
    assert bed.is_cordoned and "GPU 3 is ill" in bed.node["metadata"]["annotations"][HEALTH_CORDON]
    boot_record.settle(bed.host)
    bed.tells()
    assert not bed.is_cordoned and bed.conditions["GpuSick"] == "False"


@pytest.mark.parametrize("first", [True, False])
def test_the_cordon_of_others_stays(bed: Bed, first: bool) -> None:
    """Of a person's before ours, and of a run's after it."""
    if first:
        bed.cordon()
    bed.tells(SICK)
    if not first:
        bed.client.apply(bed.path, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": bed.name},
                                    "spec": {"unschedulable": True}}, manager="gpuops-custody-a")
    assert HEALTH_MANAGER in cordoned_by_others(bed.node)
    bed.tells()
    assert bed.is_cordoned and HEALTH_MANAGER not in cordoned_by_others(bed.node)


def test_who_uncordons_it_means_it_until_something_else_is_sick(bed: Bed) -> None:
    bed.tells(SICK)
    bed.cordon(None)
    bed.tells(SICK)
    assert not bed.is_cordoned and bed.conditions["GpuSick"] == "True"
    bed.tells(SICK, dict(SICK, key="gpu GPU-1 xid 64"))
    assert bed.is_cordoned


def test_a_hold_mark_keeps_it_cordoned(bed: Bed) -> None:
    bed.tells(SICK)
    bed.client.patch(bed.path, {"metadata": {"annotations": {HOLD: "Ann"}}})
    bed.tells()
    assert bed.is_cordoned
    bed.client.patch(bed.path, {"metadata": {"annotations": {HOLD: None}}})
    bed.tells()
    assert not bed.is_cordoned


def test_a_host_that_may_only_tell_takes_its_cordon_back(bed: Bed) -> None:
    bed.tells(SICK)
    bed.tells(SICK, cordons=False)
    assert not bed.is_cordoned and bed.conditions["GpuSick"] == "True"


def test_another_writer_in_between_is_no_failure(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    get, left = speaking.Api.get, iter(range(2))

    def disturbed(api: speaking.Api, path: str) -> Dict[str, Any]:
        found = get(api, path)
        if next(left, None) is not None:
            bed.client.patch(bed.path, {"metadata": {"annotations": {"of": str(time.time())}}})
        return found

    monkeypatch.setattr(speaking.Api, "get", disturbed)
    bed.tells(SICK)
    assert bed.is_cordoned


def test_no_host_tells_of_the_node_of_another(bed: Bed) -> None:
    bed.client.create("/api/v1/nodes", node(bed.name + "-other"))
    with pytest.raises(GpuOpsError) as caught:
        bed.tells(SICK, name=bed.name + "-other")
    assert caught.value.code == "agent.refused_by_cluster" and "403" in caught.value.found


def test_everything_that_was_said_is_taken_back_and_nothing_else(bed: Bed) -> None:
    before = bed.taints
    bed.tells(SICK)
    telling.take_back(bed.host)
    assert bed.conditions == {"Ready": "True"} and not bed.is_cordoned and bed.taints == before
    assert telling.said_before(bed.host) == []
    telling.take_back(bed.host)


@pytest.mark.parametrize("change", ["gone", "kubeconfig"])
def test_of_a_node_that_has_left_the_cluster_nothing_is_taken_back(bed: Bed, change: str) -> None:
    bed.tells(SICK)
    if change == "gone":
        bed.client.delete(bed.path)
    else:
        bed.host.remove(CONFIG)
    telling.take_back(bed.host)
    assert telling.said_before(bed.host) == []


def test_in_passing_nobody_is_asked_where_nothing_is_new(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: List[str] = []
    get = speaking.Api.get
    monkeypatch.setattr(speaking.Api, "get", lambda api, path: asked.append(path) or get(api, path))  # type: ignore
    clock = [1000.0]
    monkeypatch.setattr(telling, "since_boot", lambda: clock[0])
    assert "node" in bed.tells(in_passing=True) and len(asked) == 1
    clock[0] += 100
    assert bed.tells(in_passing=True) == {"changed": False} and len(asked) == 1
    assert bed.tells(SICK, in_passing=True)["changed"] and len(asked) == 2
    clock[0] += 300
    assert "node" in bed.tells(SICK, in_passing=True) and len(asked) == 3
    bed.host.write(telling.LATEST, "{")
    assert "node" in bed.tells(SICK, in_passing=True)


def test_what_could_not_be_said_is_said_a_little_later(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(telling, "since_boot", lambda: clock[0])
    whole = bed.host.read(CONFIG) or ""
    bed.has(whole.replace("127.0.0.1:", "127.0.0.1:1"))
    with pytest.raises(GpuOpsError):
        bed.tells(SICK, in_passing=True)
    bed.has(whole)
    assert bed.tells(SICK, in_passing=True) == {"changed": False}
    clock[0] += telling.RETRY_SECONDS
    assert bed.tells(SICK, in_passing=True)["cordoned"]


def test_a_server_that_answers_nothing_holds_nobody_up(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "STEP_SECONDS", 0.5)
    pid = bed.server._server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(GpuOpsError) as caught:
            bed.tells(SICK)
        assert caught.value.code == "agent.no_answer"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert bed.tells(SICK)["cordoned"]


def test_a_look_up_without_an_end_holds_nobody_up_and_is_not_begun_again(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, asked = threading.Event(), []

    def hangs(*words: Any, **_more: Any) -> Any:
        asked.append(words)
        ends.wait(60)
        raise OSError("no such name")

    with monkeypatch.context() as hanging:
        hanging.setattr(speaking, "WHOLE_SECONDS", 0.5)
        hanging.setattr("socket.getaddrinfo", hangs)
        for _each in range(2):
            with pytest.raises(GpuOpsError) as caught:
                bed.tells(SICK)
            assert caught.value.code == "agent.api_hangs"
        ends.set()
        assert len(asked) == 1
    _told, is_told = wait_for(lambda: not any(
        thread.is_alive() for thread in speaking._left_behind.values()), bool, 10, 0.05)
    assert is_told and bed.tells(SICK)["cordoned"]


def test_a_renewed_certificate_in_files_is_used(bed: Bed) -> None:
    """As kubeadm has it: certificate and key are one file, which the kubelet exchanges."""
    text = json.loads(bed.host.read(CONFIG) or "")
    user = text["users"][0]["user"]
    pem = b"".join(base64.b64decode(user[key]) for key in ("client-certificate-data", "client-key-data"))
    text["users"][0]["user"] = {"client-certificate": "pki/client.pem", "client-key": "pki/client.pem"}
    bed.has(json.dumps(text))
    bed.host.write("/etc/kubernetes/pki/client.pem", "cut short")
    with pytest.raises(GpuOpsError) as caught:
        bed.tells(SICK)
    assert caught.value.code == "agent.kubeconfig_unusable"
    bed.host.write("/etc/kubernetes/pki/client.pem", pem.decode())
    assert bed.tells(SICK)["node"] == bed.name


PLUGIN = """\
#!/bin/sh
# $KUBERNETES_EXEC_INFO says what is asked for
case "$KUBERNETES_EXEC_INFO" in *client.authentication.k8s.io/v1*) ;; *) exit 3 ;; esac
[ "$1" = get-token ] && [ "$OF" = paris ] || { echo "nobody is logged in" >&2; exit 1; }
cat %s
"""


@pytest.mark.parametrize("trouble, code", [
    ("", ""), ("nobody", "agent.kubeconfig_unusable"), ("absent", "agent.kubeconfig_unusable"),
    ("hangs", "host.command_timed_out")])
def test_a_credential_is_fetched_by_a_program(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str, code: str
) -> None:
    """As on EKS: its command is beside the kubeconfig where it is no whole path."""
    text = json.loads(bed.host.read(CONFIG) or "")
    user = text["users"][0]["user"]
    answer = tmp_path / "answer"
    answer.write_text(json.dumps({
        "kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": {
            "clientCertificateData": base64.b64decode(user["client-certificate-data"]).decode(),
            "clientKeyData": base64.b64decode(user["client-key-data"]).decode()}}))
    program = tmp_path / "login"
    program.write_text("#!/bin/sh\nsleep 30\n" if trouble == "hangs" else PLUGIN % answer)
    program.chmod(0o755)
    text["users"][0]["user"] = {"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "installHint": "install it", "args": ["get-token"],
        "command": str(program) + ("-of-nobody" if trouble == "absent" else ""),
        "env": [{"name": "OF", "value": "nobody" if trouble == "nobody" else "paris"}]}}
    bed.has(json.dumps(text))
    monkeypatch.setattr(speaking, "LOGIN_SECONDS", 1.0)
    if not code:
        assert bed.tells(SICK)["node"] == bed.name and bed.is_cordoned
        return
    with pytest.raises(GpuOpsError) as caught:
        bed.tells(SICK)
    assert caught.value.code == code and "PRIVATE" not in str(caught.value)
    assert trouble == "hangs" or "(install it)" in str(caught.value)
    assert trouble != "nobody" or "nobody is logged in" in str(caught.value)


def test_a_host_that_is_called_otherwise_takes_back_what_it_said_before(bed: Bed, server: RealApi) -> None:
    """Where the cluster lets it: else it is known to be left, until a person has seen to it."""
    bed.tells(SICK)
    before, config = bed.name, bed.host.read(CONFIG) or ""
    bed.name, bed.path = before + "-new", bed.path + "-new"
    bed.client.create("/api/v1/nodes", node(bed.name))
    bed.has(server.kubelet(bed.name).read_text())
    with pytest.raises(GpuOpsError) as caught:
        bed.tells(SICK)
    assert caught.value.code == "agent.not_taken_back" and before in caught.value.found
    assert bed.is_cordoned, "its own is said all the same"
    assert {each.node for each in telling.said_before(bed.host)} == {bed.name, before}
    # It has the credential of both, as of a cluster that it has left
    bed.host.write("/etc/kubernetes/old.conf", config, 0o600)
    text = json.loads(bed.host.read(telling.SAID) or "")
    next(each for each in text["nodes"] if each["node"] == before)["kubeconfig"] = "/etc/kubernetes/old.conf"
    bed.host.write(telling.SAID, json.dumps(text))
    bed.tells(SICK)
    assert [each.node for each in telling.said_before(bed.host)] == [bed.name]
    assert "unschedulable" not in bed.client.get("/api/v1/nodes/" + before)["spec"]
    telling.take_back(bed.host)
    assert telling.said_before(bed.host) == [] and not bed.is_cordoned


@pytest.mark.parametrize("answer", [
    '{"status": "ok"}', '{"metadata": "x"}', '[["a", "b"]]', "[" * 100000, '{"metadata": {"managedFields": [1]}}',
    '{"metadata": {}, "status": {"conditions": ["a"]}}'])
def test_an_answer_of_any_form_is_an_error_that_is_told(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    class Answer:
        status = 200

        def read(self, _most: int) -> bytes:
            return answer.encode()

    monkeypatch.setattr("http.client.HTTPSConnection.request", lambda *words, **more: None)
    monkeypatch.setattr("http.client.HTTPSConnection.getresponse", lambda connection: Answer())
    with pytest.raises(GpuOpsError) as caught:
        bed.tells(SICK)
    assert caught.value.code in ("agent.no_answer", "agent.not_understood")


def test_a_former_node_that_cannot_be_reached_is_not_asked_in_each_round(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(telling, "since_boot", lambda: clock[0])
    bed.host.write("/etc/kubernetes/old.conf", (bed.host.read(CONFIG) or "").replace("127.0.0.1:", "127.0.0.1:1"))
    bed.host.write(telling.SAID, json.dumps({"schema": 1, "nodes": [
        {"node": "former", "kubeconfig": "/etc/kubernetes/old.conf", "server": "https://former"}]}))
    failed = []
    for _round in range(4):
        clock[0] += 60
        try:
            bed.tells(SICK, in_passing=True)
        except GpuOpsError as error:
            failed.append(error.code)
    assert failed == ["agent.not_taken_back"] and bed.is_cordoned
    clock[0] += 240
    with pytest.raises(GpuOpsError):
        bed.tells(SICK, in_passing=True)


def test_a_former_cluster_is_told_too_where_its_node_was_called_the_same(bed: Bed) -> None:
    """And the same server by another name, or by another file, is no other one."""
    bed.tells(SICK)
    [mine] = telling.said_before(bed.host)
    text = json.loads(bed.host.read(telling.SAID) or "")
    text["nodes"].append({**text["nodes"][0], "server": "https://elsewhere"})
    text["nodes"].append({**text["nodes"][0], "kubeconfig": "/etc/kubernetes/gone.conf"})
    bed.host.write(telling.SAID, json.dumps(text))
    bed.tells(SICK)
    assert telling.said_before(bed.host) == [mine] and bed.is_cordoned
    text["nodes"].append({"node": bed.name, "kubeconfig": "/etc/kubernetes/gone.conf", "server": "https://elsewhere"})
    bed.host.write(telling.SAID, json.dumps(text))
    bed.tells(SICK)
    assert telling.said_before(bed.host) == [mine], "whose kubeconfig is gone"


def test_that_it_is_not_known_of_whom_something_was_said_stays_known(bed: Bed) -> None:
    bed.host.write(telling.SAID, "{")
    bed.tells(SICK)
    assert "?" in [each.node for each in telling.said_before(bed.host)]
    telling.take_back(bed.host)
    assert telling.said_before(bed.host) == []


def test_no_credential_lies_in_a_file_of_ours(bed: Bed) -> None:
    bed.tells(SICK)
    key = json.loads(bed.host.read(CONFIG) or "")["users"][0]["user"]["client-key-data"]
    root = Path(bed.host.path("/"))
    for path in root.rglob("*"):
        if path.is_file() and not str(path).endswith(CONFIG):
            assert key not in path.read_text() and "PRIVATE KEY" not in path.read_text()


def test_another_server_is_not_believed(bed: Bed, tmp_path: Path) -> None:
    text = json.loads(bed.host.read(CONFIG) or "")
    text["clusters"][0]["cluster"].pop("certificate-authority-data")
    bed.has(json.dumps(text))
    with pytest.raises(GpuOpsError) as caught:
        bed.tells(SICK)
    assert caught.value.code == "agent.no_answer" and "certificate" in caught.value.found.lower()


def token_of(client: Client, account: str, bound: Dict[str, Any]) -> str:
    """A token of a service account that is bound to a Node, as a pod's is."""
    found = client.create("/api/v1/namespaces/%s/serviceaccounts/%s/token" % tuple(account.split("/")), {
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {
            "expirationSeconds": 3600, "boundObjectRef": {
                "apiVersion": "v1", "kind": "Node", **{key: bound["metadata"][key] for key in ("name", "uid")}}}})
    return str(found["status"]["token"])


def applied(client: Client, page: Path) -> None:
    for item in yaml.safe_load(page.read_text())["items"]:
        if item["kind"] in PLACES:
            client.apply("%s/%s" % (PLACES[item["kind"]] % item["metadata"], item["metadata"]["name"]), item)


def with_token(bed: Bed, token: str) -> Client:
    return Client(Connection(host=bed.client.url, api_key=token, ca_cert=str(bed.server._authority.certificate)))


def await_policy(client: Client, path: str, words: str) -> None:
    """Until it refuses what any other right would let pass."""
    _answer, is_in_force = wait_for(lambda: refused(client, path, Ready="False"), lambda told: words in told, 60, 1)
    assert is_in_force


# The agent of docs/node-agent-token.yaml, with its token and no other right

ACCOUNT = "gpuops-node-agent/gpuops-node-agent"


@pytest.fixture
def agent(bed: Bed) -> Client:
    """Of this node, whose host has the kubeconfig of the page and no other."""
    applied(bed.client, TOKEN)
    token = token_of(bed.client, ACCOUNT, bed.node)
    config = example("agent.md", "tokenFile")
    [cluster] = config["clusters"]
    cluster["cluster"]["server"] = bed.client.url
    bed.has(json.dumps(config))
    authority = bed.server._authority.certificate
    for name, text in ((cluster["cluster"]["certificate-authority"], authority.read_text()),
                       (config["users"][0]["user"]["tokenFile"], token + "\n")):
        bed.host.write("/etc/kubernetes/" + name, text, 0o600)
    found = with_token(bed, token)
    await_policy(found, bed.path, "tells GpuSick")
    return found


def test_a_token_of_its_own_is_enough_for_all_that_a_host_says(bed: Bed, agent: Client) -> None:
    """Beside labels, annotations and taints of others, and a cordon that is not its own."""
    bed.client.patch(bed.path, {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})
    before = bed.taints
    assert bed.tells()["node"] == bed.name and bed.conditions["GpuSick"] == "False"
    bed.tells(SICK)
    assert bed.is_cordoned and bed.conditions["GpuSick"] == "True"
    bed.tells()
    assert not bed.is_cordoned
    bed.cordon()
    bed.tells(SICK)
    bed.tells()
    assert bed.is_cordoned and HEALTH_MANAGER not in cordoned_by_others(bed.node)
    bed.cordon(None)
    bed.tells(SICK)
    telling.take_back(bed.host)
    assert bed.conditions == {"Ready": "True"} and not bed.is_cordoned and bed.taints == before
    assert telling.said_before(bed.host) == []


def why_not(client: Client, path: str, body: Dict[str, Any]) -> str:
    try:
        client.patch(path, body, dry_run=True)
    except ApiError as error:
        return error.message
    return ""


@pytest.mark.parametrize("body, why", [
    ({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, "nothing of a node's spec but its cordon"),
    ({"spec": {"taints": None}}, "nothing of a node's spec but its cordon"),
    ({"spec": {"providerID": "a://b"}}, "nothing of a node's spec but its cordon"),
    ({"metadata": {"labels": {"nvidia.com/gpu.present": "false"}}}, "no labels and no annotations but its own"),
    ({"metadata": {"annotations": {HOLD: "me"}}}, "no labels and no annotations but its own"),
    ({"metadata": {"annotations": {"c": None}}}, "no labels and no annotations but its own"),
    ({"metadata": {"finalizers": ["a.b/c"]}}, "no labels and no annotations but its own"),
    ({"metadata": {"annotations": {HEALTH_CORDON: "x"}}, "spec": {"unschedulable": True}}, "")])
def test_such_a_token_changes_nothing_of_its_node_but_the_cordon(
    bed: Bed, agent: Client, body: Dict[str, Any], why: str
) -> None:
    bed.client.patch(bed.path, {"metadata": {"annotations": {"c": "d"}}})
    found = why_not(agent, bed.path, body)
    assert why in found and bool(found) == bool(why)
    if "metadata" in body and why:
        assert why in why_not(agent, bed.path + "/status", {"metadata": body["metadata"]})


def test_such_a_token_tells_conditions_of_gpus_of_its_own_node_alone(bed: Bed, agent: Client) -> None:
    assert refused(agent, bed.path, GpuSick="True", GpuResetPending="Unknown", GpuWarning="False") == ""
    for conditions in ({"Ready": "False"}, {"Ready": "False", "GpuSick": "True"}, {"DiskPressure": "True"}):
        assert "tells GpuSick, GpuResetPending and GpuWarning" in refused(agent, bed.path, **conditions)
    for part in ("capacity", "allocatable"):
        assert "but conditions" in refused_status(agent, bed.path, {part: {"nvidia.com/gpu": "64"}})
    assert "but conditions" in refused_status(agent, bed.path, {"nodeInfo": {"kernelVersion": "6"}})
    other = "/api/v1/nodes/%s" % bed.client.create("/api/v1/nodes", node(bed.name + "-other"))["metadata"]["name"]
    assert "of that node alone" in refused(agent, other, GpuSick="True")
    assert "of that node alone" in why_not(agent, other, {"spec": {"unschedulable": True}})
    with pytest.raises(ApiError):
        agent.create("/api/v1/nodes", node(bed.name + "-new"))
    with pytest.raises(ApiError):
        agent.delete(bed.path)


def test_such_a_token_lifts_no_cordon_of_others(bed: Bed, agent: Client) -> None:
    """Nor makes anybody forget whose it is."""
    bed.tells(SICK)
    bed.client.apply(bed.path, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": bed.name},
                                "spec": {"unschedulable": True}}, manager="gpuops-custody-a")
    for body in ({"spec": {"unschedulable": None}}, {"spec": {"unschedulable": False}},
                 {"metadata": {"managedFields": [{}]}}):
        assert "lifts no cordon of others" in why_not(agent, bed.path, body)
    with pytest.raises(ApiError, match="lifts no cordon of others"):
        agent.apply(bed.path, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": bed.name}},
                    manager="gpuops-custody-a")
    assert bed.is_cordoned


def test_such_a_token_changes_nothing_of_what_others_have_said(bed: Bed, agent: Client) -> None:
    """In the book of fields, by which runs of the collection know what they have."""
    bed.tells()
    run = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": bed.name, "annotations": {CORDONED_BY: "a"}},
           "spec": {"unschedulable": True}}
    bed.client.apply(bed.path, run, manager="gpuops-custody-a")
    book = bed.node["metadata"]["managedFields"]
    (claim,) = [each for each in book if each["manager"] == "gpuops-custody-a"]
    others = [each for each in book if each != claim]
    bare = dict(claim, fieldsV1={"f:spec": {"f:unschedulable": {}}})
    for entries in ([*others, dict(claim, operation="Update")], [*others, bare], [
            *book, dict(claim, manager="gpuops-custody-b")]):
        assert why_not(agent, bed.path, {"metadata": {"managedFields": entries}}), entries
    assert bed.tells(SICK)["cordoned"] and claims(bed.node)["gpuops-custody-a"].annotations == {CORDONED_BY: "a"}


def test_such_a_token_lifts_no_cordon_of_which_the_server_has_no_record(bed: Bed, agent: Client) -> None:
    bed.client.patch(bed.path, {"spec": {"unschedulable": True}, "metadata": {"managedFields": [{}]}})
    assert "f:unschedulable" not in json.dumps(bed.node["metadata"].get("managedFields") or [])
    assert "lifts no cordon of others" in why_not(agent, bed.path, {"spec": {"unschedulable": None}})
    assert refused(agent, bed.path, GpuSick="True") == ""


def test_who_says_that_there_is_no_cordon_is_in_the_way_of_no_such_token(bed: Bed, agent: Client) -> None:
    bed.client.apply(bed.path, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": bed.name},
                                "spec": {"unschedulable": False}}, manager="somebody")
    assert bed.tells()["conditions"] and not bed.is_cordoned


def test_a_token_of_no_node_changes_nothing(bed: Bed, agent: Client) -> None:
    path = "/api/v1/namespaces/%s/serviceaccounts/%s/token" % tuple(ACCOUNT.split("/"))
    of_nobody = with_token(bed, bed.client.create(path, {
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})["status"]["token"])
    assert "of that node alone" in refused(of_nobody, bed.path, GpuSick="True")
    assert "of that node alone" in why_not(of_nobody, bed.path, {"spec": {"unschedulable": True}})


# The detector of docs/node-problem-detector.yaml, with its token and no other right


@pytest.fixture
def detector(bed: Bed) -> Client:
    """Of this node, once its policy is in force."""
    applied(bed.client, DETECTOR)
    found = with_token(bed, token_of(bed.client, "node-problem-detector/node-problem-detector", bed.node))
    await_policy(found, bed.path, "tells GpuSick")
    return found


def refused(client: Client, path: str, **conditions: str) -> str:
    """Why these conditions may not be told, '' where they may: by a dry run, as a detector tells them."""
    there = {each["type"]: each for each in client.get(path)["status"]["conditions"]}
    for name, status in conditions.items():
        there[name] = {**there.get(name, {"type": name, "reason": "Test"}), "status": status}
    return refused_status(client, path, {"conditions": list(there.values())})


def refused_status(client: Client, path: str, status: Dict[str, Any]) -> str:
    return why_not(client, path + "/status", {"status": status})


def test_the_detector_of_the_page_tells_of_its_own_node_and_nothing_else(bed: Bed, detector: Client) -> None:
    assert refused(detector, bed.path, GpuSick="True", GpuResetPending="Unknown", GpuWarning="False") == ""
    for conditions in ({"Ready": "False"}, {"Ready": "False", "GpuSick": "True"}, {"DiskPressure": "True"}):
        assert "tells GpuSick, GpuResetPending and GpuWarning" in refused(detector, bed.path, **conditions)
    other = bed.client.create("/api/v1/nodes", node(bed.name + "-other"))
    assert "of that node alone" in refused(detector, "/api/v1/nodes/" + other["metadata"]["name"], GpuSick="True")
    assert "conditions alone" in refused_status(detector, bed.path, {"allocatable": {"nvidia.com/gpu": "64"}})
    assert "conditions alone" in refused_status(detector, bed.path, {"capacity": {"nvidia.com/gpu": "64"}})
    assert "conditions alone" in refused_status(detector, bed.path, {"nodeInfo": {"kernelVersion": "6"}})
    for body in ({"metadata": {"labels": {"a": "b"}}}, {"metadata": {"annotations": {HOLD: "me"}}}):
        assert "conditions alone" in why_not(detector, bed.path + "/status", body)
        assert why_not(detector, bed.path, body)
    assert why_not(detector, bed.path, {"spec": {"unschedulable": True}})
    book = bed.node["metadata"]["managedFields"]
    detector.patch(bed.path + "/status", {"metadata": {"managedFields": [{}]}})
    assert bed.node["metadata"]["managedFields"] == book, "by its status nobody changes who says what of a node"


def test_the_detector_of_the_page_writes_events_of_its_own_node_alone(bed: Bed, detector: Client) -> None:
    def why_no_event(kind: str, name: str) -> str:
        try:
            detector.create("/api/v1/namespaces/default/events", {
                "apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "gpu-"}, "reason": "GpuIsSick",
                "involvedObject": {"kind": kind, "name": name}, "source": {"component": "gpuops-health"}}, dry_run=True)
        except ApiError as error:
            return error.message
        return ""

    assert why_no_event("Node", bed.name) == ""
    _answer, is_in_force = wait_for(lambda: why_no_event("Pod", bed.name), lambda told: "alone" in told, 60, 1)
    assert is_in_force and "of that node alone" in why_no_event("Node", bed.name + "-other")


@pytest.mark.parametrize("policy", ["agent", "detector"])
def test_the_policies_of_the_pages_are_in_nobody_elses_way(
    bed: Bed, policy: str, request: pytest.FixtureRequest
) -> None:
    kubelets = bed.host.read(CONFIG) or ""
    request.getfixturevalue(policy)
    assert refused(bed.client, bed.path, Ready="False") == ""
    bed.has(kubelets)
    bed.tells(SICK)
    assert bed.conditions["GpuSick"] == "True" and bed.is_cordoned
    bed.cordon(None)
    assert not bed.is_cordoned
