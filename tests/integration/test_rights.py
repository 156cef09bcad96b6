# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Users with the roles of docs/rbac and no other right, on a real API server without a node.

That the roles are enough for the playbooks' whole life, and no more than that, test_uninstall sees on real hosts.
"""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import accounts
import pytest
from laboratory import new_lab

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster import observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.kinds import key_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.model import complete
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.registry import BY_DEFAULT, COMPONENTS
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.playbook_rights import (
    ACTS,
    extras,
    rights_of,
    variations,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.rights import allowed, require
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.component_action import ComponentAction, Wanted
from gpulab.lab import Lab
from gpulab.processes import wait_for

NODE = "gpu-1"
SITE = accounts.user_of("site")
ROLES = "/apis/rbac.authorization.k8s.io/v1"
# What the Prometheus operator brings
OF_PROMETHEUS = [{
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": plural + ".monitoring.coreos.com"},
    "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
             "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
                 "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}}
    for kind, plural in (("ServiceMonitor", "servicemonitors"), ("PrometheusRule", "prometheusrules"))]


@dataclass
class Cluster:
    """The API server, asked by an administrator and by the users of the playbooks."""

    lab: Lab
    scratch: Path
    admin: Client
    users: Mapping[str, Client]

    def site(self, options: Optional[Mapping[str, Mapping[str, Any]]] = None) -> Dict[str, Any]:
        """What its user asks for until the components run, in its order; without the time that they take to start."""
        user = self.users["site"]
        require(user, rights_of(ACTS))
        observation.observe(user, None, "", "", only=frozenset([NODE]))
        return self.components(user, False, options)

    def components(self, client: Client, check_mode: bool,
                   options: Optional[Mapping[str, Mapping[str, Any]]] = None) -> Dict[str, Any]:
        wanted = [Wanted(component, complete(component, (options or {}).get(component.name, {})), {})
                  for component in COMPONENTS.values() if component.name in (*BY_DEFAULT, *(options or {}))]
        action: Any = SimpleNamespace(
            _task=SimpleNamespace(check_mode=check_mode, no_log=True), _show=False, _is_to_be_done=not check_mode,
            _save_to=str(self.scratch), _approved_from=None, _await=lambda *arguments: None,
            _hold=lambda *arguments: None, _is_for_fleet=False)
        told: Dict[str, Any] = {"name": "cluster", "changed": False}
        ComponentAction._serve(action, client, wanted, told, ())
        return told


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    lab = new_lab("rights")
    lab.up("cluster")
    users = {playbook: Client(Connection(kubeconfig=str(path))) for playbook, path in accounts.prepare(lab).items()}
    found = Cluster(lab, tmp_path_factory.mktemp("rights"), Client(Connection(kubeconfig=str(lab.kubeconfig))), users)
    found.admin.create("/api/v1/nodes", {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
        "status": {"capacity": {"nvidia.com/gpu": "1"}, "allocatable": {"nvidia.com/gpu": "1"}}})
    accounts.leave_behind(lab)
    yield found
    lab.down()


def test_no_role_is_a_way_to_more(cluster: Cluster) -> None:
    for user in cluster.users.values():
        assert not allowed(user, "list", "", "secrets", "gpuops")
        assert not allowed(user, "create", "", "namespaces")
        for verb in ("escalate", "bind"):
            assert not allowed(user, verb, "rbac.authorization.k8s.io", "clusterroles")
            assert not allowed(user, verb, "rbac.authorization.k8s.io", "roles", "gpuops")


def each_verb() -> List[Any]:
    """(role, number of the rule in it, verb) of everything that site may."""
    return [pytest.param(role, number, verb, id="-".join((
                role["metadata"].get("namespace", "cluster"), verb, *rule["resources"])))
            for role in accounts.roles_in("site.yaml") for number, rule in enumerate(role["rules"])
            for verb in rule["verbs"]]


def path_of(role: Mapping[str, Any]) -> str:
    return key_of(role).path


def without(rules: List[Dict[str, Any]], number: int, verb: str) -> List[Dict[str, Any]]:
    rule = rules[number]
    left = [{**rule, "verbs": [each for each in rule["verbs"] if each != verb]}] if rule["verbs"] != [verb] else []
    return [*rules[:number], *left, *rules[number + 1:]]


@pytest.mark.parametrize(("role", "number", "verb"), each_verb())
def test_each_verb_that_is_missing_is_named_before_the_first_write(
    cluster: Cluster, role: Dict[str, Any], number: int, verb: str
) -> None:
    rule, site = role["rules"][number], cluster.users["site"]
    resource, group = rule["resources"][0], rule["apiGroups"][0]
    place, name = role["metadata"].get("namespace", ""), rule.get("resourceNames", [""])[0]

    def may() -> bool:
        return allowed(site, verb, group, resource, place, name)

    cluster.admin.patch(path_of(role), {"rules": without(role["rules"], number, verb)})
    try:
        wait_for("a role without %s %s" % (verb, resource), lambda: not may(), 10, "the API server", pause=0.01)
        with pytest.raises(GpuOpsError) as refused:
            cluster.site()
    finally:
        cluster.admin.patch(path_of(role), {"rules": role["rules"]})
        wait_for("a whole role", may, 10, "the API server", pause=0.01)
    error = refused.value
    assert error.code in ("cluster.rights_missing", "cluster.right_missing"), error
    told = "%s %s" % (error.found if error.code == "cluster.rights_missing" else error.wanted, "")
    called = "%s.%s" % (resource, group) if group else resource
    assert verb in told and any("%s.%s" % (each, group) in told if group else each in told
                                for each in rule["resources"]), (called, told)
    assert accounts.writes(cluster.lab, SITE) == []


def test_who_may_only_look_is_shown_the_plan_of_who_may_write(cluster: Cluster) -> None:
    seen = cluster.components(cluster.users["plan"], check_mode=True)["plan"]
    whole = cluster.components(cluster.admin, check_mode=True)["plan"]
    assert [(step["action"], step["subject"]) for step in seen["steps"]] == [
        (step["action"], step["subject"]) for step in whole["steps"]]
    assert any("this user may not change" in note for note in seen["notes"]) and whole["notes"] == []
    assert accounts.denied(cluster.lab, accounts.user_of("plan")) == []
    assert accounts.writes(cluster.lab, accounts.user_of("plan")) == []


def test_the_role_is_enough_and_takes_away_what_is_no_longer_wanted(cluster: Cluster) -> None:
    done = cluster.site()["plan"]
    assert sum(step["action"] == "object.prune" for step in done["steps"]) == 7
    assert cluster.site()["plan"]["steps"] == []
    asked = accounts.used(cluster.lab, SITE)
    roles = accounts.roles_in("site.yaml")
    unused = {each for each in accounts.unused(accounts.granted(roles), asked) if each.namespace == "gpuops"}
    assert {each for each in unused if not each.resource.startswith("leases.")} == {
        accounts.Asked(verb, "nodefeatures.nfd.k8s-sigs.io", "gpuops") for verb in ("create", "update")}, (
        "only what the components' own roles grant, and what takes nodes out of service, is not used")


@pytest.mark.parametrize(("component", "option"), sorted(extras()))
def test_an_option_needs_the_roles_of_its_file(cluster: Cluster, component: str, option: str) -> None:
    site, options = cluster.users["site"], {component: variations()[component, option]}
    accounts.create(cluster.lab, OF_PROMETHEUS)
    name = "-".join(filter(None, (component, option))).replace("_", "-").replace(".", "-")
    roles = [role for role in accounts.roles_in("options/%s.yaml" % name)
             if role["metadata"]["name"].startswith("gpuops-site-")]
    with pytest.raises(GpuOpsError) as refused:
        cluster.site(options)
    assert refused.value.code in ("cluster.rights_missing", "cluster.right_missing")
    bindings = [accounts.binding(role, SITE) for role in roles]
    accounts.create(cluster.lab, [*roles, *bindings])
    rule = roles[-1]["rules"][-1]
    wanted: Tuple[Any, ...] = (rule["verbs"][0], rule["apiGroups"][0], rule["resources"][0],
                               roles[-1]["metadata"].get("namespace", ""), rule.get("resourceNames", [""])[0])
    wait_for("the roles of %s" % option, lambda: allowed(site, *wanted), 10, "the API server", pause=0.01)
    assert cluster.site(options)["changed"]
    for each in bindings:
        cluster.admin.delete(path_of(each))
    wait_for("the end of these roles", lambda: not allowed(site, *wanted), 10, "the API server", pause=0.01)
    # The next one begins where this one did
    cluster.components(cluster.admin, False, {
        name: {} if name in BY_DEFAULT else {"state": "absent"} for name in COMPONENTS})
