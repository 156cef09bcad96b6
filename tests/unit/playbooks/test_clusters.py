# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which hosts of a play are nodes of which cluster, and their variables out of a task that runs for one of them."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.gpuops.nvidia.plugins.plugin_utils.clusters import (
    OF_SERVER,
    PlayVariables,
    clusters_of,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.role_variables import trust_as_template


class HostVars:
    """As Ansible's: raw_get() gives what is a host's own, templates as they are written."""

    def __init__(self, hosts: Mapping[str, Mapping[str, Any]]) -> None:
        self.hosts = hosts

    def raw_get(self, name: str) -> Mapping[str, Any]:
        return {"inventory_hostname": name, **self.hosts[name]}


def play(hosts: Mapping[str, Mapping[str, Any]], of_play: Optional[Mapping[str, Any]] = None) -> PlayVariables:
    """As a task sees them that runs for the first host."""
    known = HostVars(hosts)
    first = next(iter(hosts))
    task_vars: Dict[str, Any] = {**known.raw_get(first), **(of_play or {}), "hostvars": known,
                                 "ansible_play_hosts_all": list(hosts)}
    return PlayVariables(task_vars, Templar(loader=DataLoader(), variables=task_vars))


def told(variables: PlayVariables) -> List[Any]:
    return [(str(each), each.hosts) for each in clusters_of(variables)]


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("K8S_AUTH_KUBECONFIG", "K8S_AUTH_HOST"):
        monkeypatch.delenv(name, raising=False)


def test_hosts_that_say_the_same_are_of_one_cluster() -> None:
    one, two = {"gpu_cluster_kubeconfig": "/a"}, {"gpu_cluster_kubeconfig": "/a", "gpu_cluster_context": "other"}
    assert told(play({"n1": one, "n2": two, "n3": one})) == [("/a", ("n1", "n3")), ("/a other", ("n2",))]


def test_a_host_that_names_none_is_in_none_where_another_names_one() -> None:
    assert told(play({"n1": {}, "n2": {"gpu_cluster_kubeconfig": "/a"}})) == [("/a", ("n2",))]


def test_without_a_name_all_are_where_the_usual_search_leads() -> None:
    assert told(play({"n1": {}, "n2": {}})) == [("the cluster of the environment", ("n1", "n2"))]


def test_what_a_host_does_not_say_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K8S_AUTH_HOST", "https://api")
    assert told(play({"n1": {}, "n2": {"gpu_cluster_kubeconfig": "/a"}})) == [
        ("the cluster of the environment", ("n1",)), ("/a", ("n2",))]


def test_an_empty_name_is_none() -> None:
    assert told(play({"n1": {"gpu_cluster_kubeconfig": ""}, "n2": {"gpu_cluster_kubeconfig": "/a"}})) == [
        ("/a", ("n2",))]


def test_a_template_is_worked_out_with_the_hosts_own_variables() -> None:
    path = {"gpu_cluster_kubeconfig": trust_as_template("/{{ site }}")}
    assert told(play({"n1": {**path, "site": "a"}, "n2": {**path, "site": "b"}})) == [("/a", ("n1",)), ("/b", ("n2",))]


def test_what_the_play_says_counts_for_every_host() -> None:
    variables = play({"n1": {"x": 1}, "n2": {"x": 2}}, {
        "gpu_cluster_kubeconfig": trust_as_template("/of/{{ inventory_hostname }}")})
    assert told(variables) == [("/of/n1", ("n1",)), ("/of/n2", ("n2",))]
    assert (variables.value("n1", "x"), variables.value("n2", "x")) == (1, 2)


def test_what_is_the_first_hosts_alone_is_no_other_ones() -> None:
    variables = play({"n1": {"mine": 1}, "n2": {}})
    assert (variables.value("n1", "mine"), variables.value("n2", "mine")) == (1, None)


def test_an_address_names_a_cluster_too() -> None:
    here = {"gpu_cluster_host": "https://a", "gpu_cluster_api_key": "x"}
    assert told(play({"n1": here, "n2": {"gpu_cluster_kubeconfig": "/a"}, "n3": here})) == [
        ("https://a", ("n1", "n3")), ("/a", ("n2",))]


def test_hosts_that_come_to_one_cluster_as_different_users_are_refused() -> None:
    hosts = {name: {"gpu_cluster_host": "https://a", "gpu_cluster_api_key": "of-" + name} for name in ("n1", "n2")}
    (cluster,) = clusters_of(play(hosts))
    (refusal,) = cluster.refusals
    assert refusal.code == "cluster.hosts_disagree" and "of-n" not in str(refusal), refusal


@pytest.mark.parametrize("own, environment, none", [
    ({"gpu_cluster_kubeconfig": "/a"}, {}, {"host"}),
    ({"gpu_cluster_kubeconfig": "/a"}, {"K8S_AUTH_HOST": "https://b"}, {"host", *OF_SERVER}),
    ({"gpu_cluster_host": "https://a"}, {"K8S_AUTH_KUBECONFIG": "/b"}, {"kubeconfig", "context"}),
    ({"gpu_cluster_host": "https://a"}, {"K8S_AUTH_HOST": "https://b"}, {"kubeconfig", "context", *OF_SERVER}),
    ({"gpu_cluster_host": "https://a"}, {"K8S_AUTH_HOST": "https://a/"}, {"kubeconfig", "context"}),
    ({"gpu_cluster_host": "https://a", "gpu_cluster_ca_cert": "/ca"}, {"K8S_AUTH_HOST": "https://b"},
     {"kubeconfig", "context", *OF_SERVER} - {"ca_cert"}),
    ({"gpu_cluster_context": "c"}, {"K8S_AUTH_KUBECONFIG": "/b"}, set()),
])
def test_a_host_that_names_its_cluster_is_not_led_elsewhere_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, own: Dict[str, str], environment: Dict[str, str], none: Any
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (cluster,) = clusters_of(play({"n1": own}))
    assert {option for option, value in cluster.options.items() if value is None} == none
