# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host's own cluster among those of a play."""
from __future__ import annotations

from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.filter.own_cluster import own_cluster

CLUSTERS = [{"name": "a", "hosts": ["n1", "n2"], "failed": True, "msg": "it cannot be read"},
            {"name": "b", "hosts": ["n3"], "failed": False, "others": ["n9"]}]


def test_it_is_the_one_that_the_host_has_named() -> None:
    assert [own_cluster(CLUSTERS, host)["name"] for host in ("n1", "n2", "n3")] == ["a", "a", "b"]
    assert own_cluster(CLUSTERS, "n3") == CLUSTERS[1]


def test_of_a_host_in_none_nothing_has_failed() -> None:
    assert own_cluster(CLUSTERS, "n4") == own_cluster([], "n1") == {"failed": False, "hosts": [], "others": []}


def test_it_is_looked_up_in_no_other_way() -> None:
    texts = {path: path.read_text() for directory in ("playbooks", "roles")
             for path in (REPOSITORY / directory).rglob("*.yml")}
    assert [str(path) for path, text in texts.items() if "selectattr('hosts', 'contains'" in text] == []
