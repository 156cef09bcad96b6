# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""uninstall brings the hosts and the cluster back to what they were."""
from __future__ import annotations

from typing import Any

from laboratory import DEMO_HOSTS, Fleet, Played, changed_by_us, different


def test_hosts_and_cluster_are_as_they_were(demo: Fleet, bare: Any, installed: Played) -> None:
    demo.play("gpuops.nvidia.uninstall")
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
    left_over = demo.lab.kubectl(["get", "namespaces,runtimeclasses,crd,clusterroles,clusterrolebindings",
                                  "-l", "app.kubernetes.io/managed-by=gpuops", "-o", "name"]).stdout
    assert left_over == ""
    assert "gpuops" not in demo.lab.kubectl(["get", "namespaces", "-o", "name"]).stdout


def test_a_second_uninstall_changes_nothing(demo: Fleet, installed: Played) -> None:
    again = demo.play("gpuops.nvidia.uninstall")
    assert [change for change in again.changes() if "ordon" not in change[1]] == []
