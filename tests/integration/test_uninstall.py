# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""uninstall brings the hosts and the cluster back to what they were."""
from __future__ import annotations

from typing import Any, Set

import accounts
import gpu_pods
import pytest
from laboratory import DEMO_HOSTS, Fleet, Played, changed_by_us, different

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.model import objects
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.registry import BY_DEFAULT, COMPONENTS

# Of Cluster API and of pods with claims, which this laboratory has none of
OF_OTHERS = {"machines.cluster.x-k8s.io", "resourceclaims.resource.k8s.io"}
WHOLE_LIFE = {"test_site", "test_faults", "test_upgrade", "test_uninstall"}


def test_hosts_and_cluster_are_as_they_were(demo: Fleet, bare: Any, installed: Played) -> None:
    gpu_pods.run(demo, [gpu_pods.deployment(gpu_pods.pod("work", "h100", 1))])
    demo.play("gpuops.nvidia.uninstall")
    demo.lab.kubectl(["delete", "deployment", "work"])
    for host in DEMO_HOSTS:
        assert changed_by_us(bare.trees[host], demo.fingerprint(host)) == {}
        assert different(bare.packages[host], demo.packages(host)) == {}
        assert demo.say(host, "sh", "-c", "ls -d /dev/nvidia* /proc/driver/nvidia /var/run/cdi/nvidia*") == ""
        assert "nvidia" not in demo.say(host, "lsmod")
        assert demo.say(host, "systemctl", "is-system-running") == "running"
        node = demo.node(host)
        assert node["spec"] == bare.nodes[host]["spec"]
        assert different(bare.nodes[host]["metadata"]["labels"], node["metadata"]["labels"]) == {}
        assert not [name for name in node["metadata"].get("annotations", {}) if "gpuops" in name]
    kinds = "namespaces,runtimeclasses,crd,clusterroles,clusterrolebindings,serviceaccounts,roles,configmaps,daemonsets"
    left_over = demo.lab.kubectl(["get", kinds, "--all-namespaces", "-l", "app.kubernetes.io/managed-by=gpuops",
                                  "-o", "name"]).stdout
    assert left_over == ""
    assert "gpuops" in demo.lab.kubectl(["get", "namespaces", "-o", "name"]).stdout, "the administrator's"


@pytest.mark.variation
def test_a_second_uninstall_changes_nothing(demo: Fleet, installed: Played) -> None:
    again = demo.play("gpuops.nvidia.uninstall")
    assert [change for change in again.changes() if "ordon" not in change[1]] == []


def test_roles_grant_what_was_used_and_no_more(demo: Fleet, installed: Played, request: pytest.FixtureRequest) -> None:
    """All playbooks of this laboratory were users with their own roles; their life is in the API server's audit log."""
    assert Client(Connection(kubeconfig=str(demo.accounts["inventory"]))).items("/api/v1/nodes")
    for playbook in accounts.PLAYBOOKS:
        user, roles = accounts.user_of(playbook), accounts.roles_in(playbook + ".yaml")
        assert accounts.denied(demo.lab, user) == []
        if {item.path.stem for item in request.session.items} >= WHOLE_LIFE:
            rest = accounts.unused(accounts.granted(roles), accounts.used(demo.lab, user))
            rest = {each for each in rest if each.resource not in OF_OTHERS}
            # Who makes a role has to have what it grants
            assert rest - (granted_to_components() if playbook == "site" else set()) == set()


def granted_to_components() -> Set[accounts.Asked]:
    return accounts.granted([item for name in BY_DEFAULT for item in objects(COMPONENTS[name], {})
                             if item["kind"] in ("Role", "ClusterRole")])
