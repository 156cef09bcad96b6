# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What cannot be done is said before the first write: what was found, what was wanted, and what to do."""
from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, FrozenSet, Iterator, Mapping, Sequence

import pytest
from laboratory import new_lab
from workspace import REPOSITORY, collections_root

from gpulab.lab import Lab
from gpulab.topology import parse

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="boots hosts: needs root")

TOPOLOGY = parse({
    "name": "refusals",
    "control_plane": True,
    "hosts": [
        {"name": "t4", "board": "t4", "gpus": 1},
        {"name": "v100", "board": "v100", "gpus": 1, "join": False},
        {"name": "b200", "board": "b200-hgx", "gpus": 8, "join": False},
        {"name": "plain", "join": False},
    ],
}, __file__)
HOSTS = tuple(host.name for host in TOPOLOGY.hosts)
REPOSITORY_URL = "http://packages.gpulab:8480/cuda/repos/debian12/x86_64"
EFI_VARIABLE = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# An empty list of keys: shim has started the system
SHIM_VARIABLE = "/sys/firmware/efi/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23"

# Everything that an installation would change: contents where whoever only looks may write them anew, else names, sizes
# and times, of files that of the last change of anything among them. Of a directory the overlay itself changes that.
STATE = r"""
find /var/lib/dpkg /var/lib/apt -xdev -type f -exec sha256sum {} +
find /etc /usr /boot /var/lib/dkms -xdev ! -path '*/__pycache__*' -printf '%p %y %m %u %s %T@ %l' \
    '(' -type f -printf ' %C@\n' -o -printf '\n' ')'
dpkg-query --show --showformat '${Package} ${Version} ${db:Status-Abbrev}\n'
apt-mark showhold; lsmod; find /var/lib/gpuops
systemctl list-units --all --plain --no-legend --type service | grep ' running '
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """A host, what is wrong with the wish or with the host, and what the answer must say."""

    name: str
    host: str
    variables: Mapping[str, Any]
    says: Sequence[str]


WISHES = (
    Case("a version that is not there", "t4", {"gpu_driver_version": "570.1.2"},
         ("drivers 580.126.09, 580.178.04, 595.91.07, 610.57.04", "driver 570.1.2",
          "set `gpu_driver_version` to one of these")),
    Case("the open module for a V100", "v100", {"gpu_driver_kernel_module": "open"},
         ("10de:1db1", "Volta", "the open kernel module", "set `gpu_driver_kernel_module` to `auto` or `proprietary`")),
    Case("the proprietary module for a B200", "b200", {"gpu_driver_kernel_module": "proprietary"},
         ("10de:2901", "Blackwell", "the proprietary kernel module",
          "set `gpu_driver_kernel_module` to `auto` or `open`")),
)
# site leaves such a host out, with a word.
WISHES_OF_WRITER = (
    *WISHES, Case("no GPU", "plain", {}, ("no NVIDIA GPU on the PCI bus", "lspci -d 10de:")))
STATES = (
    Case("Secure Boot and unsigned modules", "t4", {}, ("Secure Boot is on", "DKMS", "mokutil --import")),
    Case("an immutable host", "v100", {}, ("/run/ostree-booted", "rpm-ostree install", "preinstalled")),
    Case("a repository that does not answer", "b200",
         {"gpu_driver_repository_url": REPOSITORY_URL.replace("8480", "8499")},
         (REPOSITORY_URL.replace("8480", "8499"), "check")),
)
CONTRADICTIONS = (
    Case("a word that is no version", "t4", {"gpu_driver_version": "newest"},
         ("`gpu_driver_version`: newest", "580.178.04")),
    Case("a local repository without a key", "b200",
         {"gpu_driver_source": "local_repository", "gpu_driver_repository_key": ""},
         ("local_repository without `gpu_driver_repository_key`", "set `gpu_driver_repository_url`")),
    Case("a toolkit that lets containers out", "v100", {"container_toolkit_version": "1.16.1"},
         ("1.16.1", "let a container out", "allow_vulnerable")),
    Case("the handler of runc", "plain", {"container_runtime_handler": "runc"},
         ("`container_runtime_handler`: 'runc'", "use `nvidia`")),
)
# The controller alone reads a kubeconfig: these hosts are names.
KUBECONFIGS = (
    Case("missing", "missing", {"file": None}, ("/missing", "there is no file", "kubectl --kubeconfig")),
    Case("no YAML", "garbage", {"file": "clusters: [unclosed"}, ("/garbage", "cannot be used", "kubectl --kubeconfig")),
    Case("no mapping", "list", {"file": "- a\n- list\n"}, ("/list", "cannot be used", "kubectl --kubeconfig")),
    Case("unknown context", "context", {"context": "training"}, ("/context", "training", "config get-contexts")),
)


def of_host(cases: Sequence[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


class Controller:
    """Ansible as a user runs it, and what it told about each host."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self.lab = lab
        self.directory = directory

    def refusals(self, playbook: str, cases: Sequence[Case]) -> Dict[str, str]:
        """Run a playbook on the hosts of the cases, each with its own variables; the failure message of each host."""
        own = self.directory / "hosts.json"
        own.write_text(json.dumps({"all": {"hosts": {case.host: dict(case.variables) for case in cases}}}))
        command = [sys.executable, "-m", "ansible.cli.playbook", "--inventory", self._base(), "--inventory", own,
                   "--limit", ",".join(case.host for case in cases), playbook]
        output = self.directory / "output"
        with output.open("w") as handle:
            # A file, not a pipe: ssh's master process keeps what it inherited open for a minute.
            done = subprocess.run([str(word) for word in command], env=self._environment(), cwd=self.directory,
                                  stdin=subprocess.DEVNULL, stdout=handle, stderr=handle, timeout=240, check=False)
        told = output.read_text()
        assert done.returncode != 0 and not re.search(r"changed=[1-9]", told), told
        failures = re.findall(r"^fatal: \[(\w+)[^\]]*\]: FAILED! => (\{.*\})$", told, re.MULTILINE)
        assert len(failures) == len(cases), told
        return {host: str(json.loads(result)["msg"]) for host, result in failures}

    def _base(self) -> Path:
        """The laboratory's inventory, its policy as variables of the group `all`, so that a host's own ones win."""
        base = self.directory / "base"
        (base / "group_vars").mkdir(parents=True, exist_ok=True)
        (base / "inventory.yml").write_text(self.lab.inventory.read_text())
        (base / "group_vars" / "all.yml").write_text((REPOSITORY / "tests" / "lab" / "policy.yml").read_text())
        return base / "inventory.yml"

    def _environment(self) -> Dict[str, str]:
        return {
            "PATH": os.environ["PATH"], "HOME": str(self.directory), "ANSIBLE_HOME": str(self.directory / "ansible"),
            "ANSIBLE_COLLECTIONS_PATH": str(collections_root()), "ANSIBLE_PIPELINING": "true", "ANSIBLE_FORKS": "8",
            "ANSIBLE_DEPRECATION_WARNINGS": "false", "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8",
        }


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = new_lab("refusals")
    lab.up(TOPOLOGY)
    yield lab
    lab.down()


@pytest.fixture(scope="module")
def before(lab: Lab) -> Dict[str, FrozenSet[str]]:
    return {name: state(lab, name) for name in HOSTS}


@pytest.fixture(scope="module")
def controller(lab: Lab, before: Dict[str, FrozenSet[str]], tmp_path_factory: pytest.TempPathFactory) -> Controller:
    return Controller(lab, tmp_path_factory.mktemp("controller"))


@pytest.fixture(scope="module")
def wishes(controller: Controller) -> Dict[str, str]:
    return controller.refusals("gpuops.nvidia.site", WISHES)


@pytest.fixture(scope="module")
def wishes_of_writer(controller: Controller) -> Dict[str, str]:
    play = [{"hosts": "all", "gather_facts": False, "roles": ["gpuops.nvidia.gpu_driver"]}]
    path = controller.directory / "driver.yml"
    path.write_text(json.dumps(play))
    return controller.refusals(str(path), WISHES_OF_WRITER)


@pytest.fixture(scope="module")
def states(lab: Lab, controller: Controller) -> Dict[str, str]:
    lab.ssh("t4", ["mkdir", "-p", os.path.dirname(EFI_VARIABLE)])
    for path, content in ((EFI_VARIABLE, "\\006\\000\\000\\000\\001"), (SHIM_VARIABLE, "\\006\\000\\000\\000")):
        lab.ssh("t4", ["sh", "-c", "printf '%s' > %s" % (content, path)])
    lab.ssh("v100", ["touch", "/run/ostree-booted"])
    try:
        return controller.refusals("gpuops.nvidia.site", STATES)
    finally:
        lab.ssh("t4", ["rm", "-r", "/sys/firmware"])
        lab.ssh("v100", ["rm", "/run/ostree-booted"])


@pytest.fixture(scope="module")
def contradictions(controller: Controller) -> Dict[str, str]:
    return controller.refusals("gpuops.nvidia.plan", CONTRADICTIONS)


@pytest.fixture(scope="module")
def kubeconfigs(lab: Lab, controller: Controller) -> Dict[str, str]:
    cases = []
    for case in KUBECONFIGS:
        path = controller.directory / case.host
        text = case.variables.get("file", lab.kubeconfig.read_text())
        if text is not None:
            path.write_text(text)
        own = {"ansible_connection": "local", "file": str(path), "context": case.variables.get("context")}
        cases.append(dataclasses.replace(case, variables=own))
    play = [{"hosts": "all", "gather_facts": False, "tasks": [{
        "gpuops.nvidia.gpu_cluster_info": {"kubeconfig": "{{ file }}", "context": "{{ context or omit }}"},
        "vars": {"ansible_python_interpreter": "{{ ansible_playbook_python }}"}}]}]
    path = controller.directory / "kubeconfigs.yml"
    path.write_text(json.dumps(play))
    return controller.refusals(str(path), cases)


@of_host(WISHES)
def test_a_wish_that_the_host_cannot_have(case: Case, wishes: Dict[str, str]) -> None:
    check(wishes[case.host], case.says)


@of_host(WISHES_OF_WRITER)
def test_the_writer_refuses_as_the_plan_does(case: Case, wishes_of_writer: Dict[str, str]) -> None:
    check(wishes_of_writer[case.host], case.says)


@of_host(STATES)
def test_a_host_that_cannot_take_a_driver(case: Case, states: Dict[str, str]) -> None:
    check(states[case.host], case.says)


@of_host(CONTRADICTIONS)
def test_a_policy_that_contradicts_itself(case: Case, contradictions: Dict[str, str]) -> None:
    check(contradictions[case.host], case.says)


def test_a_cluster_that_the_operator_manages(lab: Lab, controller: Controller) -> None:
    lab.kubectl(["apply", "--filename", "-"], feed=json.dumps(CLUSTER_POLICIES))
    lab.kubectl(["wait", "--for=condition=Established", "crd/clusterpolicies.nvidia.com", "--timeout=30s"])
    try:
        lab.kubectl(["apply", "--filename", "-"], feed=json.dumps(CLUSTER_POLICY))
        # What NFD, which the operator brings, tells of a node with a GPU
        lab.kubectl(["label", "node", "t4", "feature.node.kubernetes.io/pci-10de.present=true"])
        told = controller.refusals("gpuops.nvidia.site", [Case("managed", "t4", {}, ())])
    finally:
        lab.kubectl(["label", "node", "t4", "feature.node.kubernetes.io/pci-10de.present-"])
        lab.kubectl(["delete", "crd", "clusterpolicies.nvidia.com"])
    check(told["t4"], ("the NVIDIA GPU Operator manages t4", "cluster-policy", "nvidia.com/gpu.deploy.operands=false"))


def test_an_api_server_that_does_not_answer(lab: Lab, controller: Controller) -> None:
    kubeconfig = controller.directory / "wrong-port"
    kubeconfig.write_text(lab.kubeconfig.read_text().replace(":6443", ":6499"))
    policy = {"gpu_cluster_kubeconfig": str(kubeconfig)}
    told = controller.refusals("gpuops.nvidia.site", [Case("wrong port", "t4", policy, ())])
    check(told["t4"], (":6499", "does not answer", str(kubeconfig), "check the address"))


@pytest.mark.variation
def test_a_host_that_is_not_as_it_was_when_its_plan_was_approved(controller: Controller) -> None:
    directory = controller.directory / "approved"
    directory.mkdir()
    planned = controller.directory / "plan.yml"
    planned.write_text(json.dumps([{"hosts": "t4", "gather_facts": False, "tasks": [
        {"gpuops.nvidia.gpu_plan": {"nouveau": {}, "save_to": str(directory)}}, {"ansible.builtin.fail": {}}]}]))
    controller.refusals(str(planned), [Case("nouveau alone", "t4", {}, ())])
    told = controller.refusals("gpuops.nvidia.site", [Case("approved", "t4", {"gpu_plan_dir": str(directory)}, ())])
    check(told["t4"], ("the approved plan says nothing of driver", "make a new plan"))


@of_host(KUBECONFIGS)
def test_a_kubeconfig_that_cannot_be_used(case: Case, kubeconfigs: Dict[str, str]) -> None:
    check(kubeconfigs[case.host], case.says)


def test_no_refusal_wrote_anything(
    lab: Lab, before: Dict[str, FrozenSet[str]], wishes: Any, wishes_of_writer: Any, states: Any, contradictions: Any
) -> None:
    for name in HOSTS:
        assert sorted(state(lab, name) ^ before[name]) == [], name


def check(message: str, says: Sequence[str]) -> None:
    assert re.search(r"Found: .+ Wanted: .+ Do: .+", message, re.DOTALL), message
    for words in says:
        assert words in message, message
    assert "Traceback" not in message


def state(lab: Lab, host: str) -> FrozenSet[str]:
    return frozenset(lab.ssh(host, ["sh", "-c", STATE], check=False).stdout.splitlines())


CLUSTER_POLICIES: Dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "clusterpolicies.nvidia.com"},
    "spec": {
        "group": "nvidia.com",
        "scope": "Cluster",
        "names": {"kind": "ClusterPolicy", "listKind": "ClusterPolicyList", "plural": "clusterpolicies",
                  "singular": "clusterpolicy"},
        "versions": [{
            "name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }],
    },
}
CLUSTER_POLICY: Dict[str, Any] = {
    "apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}, "spec": {},
}
