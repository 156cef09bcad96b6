# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The table of rights: as narrow as RBAC can make it, whole by construction, and asked before the first write."""
from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Set, Tuple

import pytest
import rights_pages
import yaml
from cluster_api import Api
from hypothesis import given
from hypothesis import strategies as st
from object_store import Store

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster import playbook_rights
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components import common
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components import rights as component_rights
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.kinds import KINDS
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.model import (
    Component,
    complete,
    objects,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.registry import BY_DEFAULT, COMPONENTS
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.steps import CREATE
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.playbook_rights import (
    ACTS,
    BESIDE,
    OF_DRAINS,
    PLAYBOOKS,
    extras,
    rights_of,
    rules_of,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.rights import (
    Rule,
    beyond,
    granted_by,
    may,
    merged,
    require,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan, Step

READS = {"get", "list", "watch"}
Right = Tuple[str, str, str, str, str]

VERBS, RESOURCES, PLACES, NAMES = ("get", "list", "create"), ("pods", "nodes"), ("", "a", "b"), ("x", "y", "z")
rules = st.builds(
    Rule, st.lists(st.sampled_from(VERBS), min_size=1, unique=True).map(tuple), st.just(""),
    st.sampled_from(RESOURCES), st.sampled_from(["", "this", "that"]),
    st.lists(st.sampled_from(NAMES), unique=True).map(tuple), st.sampled_from(PLACES))
lists_of_rules = st.lists(rules, max_size=8)


def allows(found: List[Rule]) -> Set[Tuple[str, ...]]:
    """Every single thing that rules allow, as RBAC reads them; a request without a name has ''."""
    return {each for each in itertools.product(VERBS, RESOURCES, PLACES, ("", *NAMES)) if any(
        each[0] in rule.verbs and each[1] == rule.resource and rule.place in ("", each[2])
        and (not rule.names or each[3] in rule.names) for rule in found)}


def writes(found: List[Rule]) -> List[Rule]:
    return [rule for rule in found if not READS.issuperset(rule.verbs)]


@given(lists_of_rules)
def test_merged_rules_allow_the_same_and_nothing_twice(given_rules: List[Rule]) -> None:
    found = merged(given_rules)
    assert allows(found) == allows(given_rules)
    assert len({rule.target for rule in found}) == len(found) or any(rule.names for rule in found)
    for number, rule in enumerate(found):
        assert beyond([rule], [*found[:number], *found[number + 1:]]) == [rule], "each is needed whole"


@given(lists_of_rules, lists_of_rules)
def test_what_goes_beyond_is_what_is_not_allowed(wanted: List[Rule], there: List[Rule]) -> None:
    assert allows(beyond(wanted, there)) | allows(there) == allows(wanted) | allows(there)
    assert beyond(wanted, [*there, *wanted]) == []


class TestEveryPlaybook:
    def test_is_in_the_table_unless_it_asks_no_cluster(self) -> None:
        there = {path.stem for path in (rights_pages.REPOSITORY / "playbooks").glob("*.yml")}
        # To repair is the flow of site, and takes its rights
        there -= {"manifests", "repair"}
        assert there == set(PLAYBOOKS) - {"inventory"} == set(rights_pages.DOES) - {"inventory"}

    @pytest.mark.parametrize("playbook", PLAYBOOKS)
    def test_no_rule_is_a_way_to_more(self, playbook: str) -> None:
        for rule in rules_of(playbook, {}):
            assert "*" not in (*rule.verbs, rule.group, rule.resource)
            assert not {"escalate", "bind", "impersonate"}.intersection(rule.verbs)
            assert rule.resource not in ("secrets", "pods/exec", "nodes/proxy", "serviceaccounts/token"), rule
            assert rule.purpose

    @pytest.mark.parametrize("playbook", ["inventory", "plan"])
    def test_who_only_looks_cannot_write(self, playbook: str) -> None:
        assert writes(rules_of(playbook, {})) == []

    def test_site_has_what_those_have_that_only_look(self) -> None:
        for playbook in ("inventory", "plan", "validate"):
            assert beyond(rules_of(playbook, {}), rules_of("site", {})) == []

    @pytest.mark.parametrize("playbook", ["site", "uninstall"])
    def test_what_is_written_for_the_whole_cluster_has_names(self, playbook: str) -> None:
        """But what pods and nodes are called, nobody knows before; and what the components' own roles grant."""
        granted = [rule for name in BY_DEFAULT for item in objects(COMPONENTS[name], complete(COMPONENTS[name], {}))
                   if item["kind"] == "ClusterRole" for rule in granted_by(item)]
        ours = [rule for act in ACTS.values() for rule in act]
        for rule in writes(beyond(rules_of(playbook, {}), [*granted, *ours])):
            assert rule.place or rule.names, rule

    def test_site_takes_nothing_of_the_cluster_away(self) -> None:
        deleted = [rule.called for rule in rules_of("site", {}) if "delete" in rule.verbs and not rule.place]
        assert deleted == ["nodefeatures.nfd.k8s-sigs.io"], "which the collector of Node Feature Discovery may"

    @pytest.mark.parametrize("playbook", PLAYBOOKS)
    def test_leases_are_those_of_our_namespace(self, playbook: str) -> None:
        """Every controller of a cluster has some."""
        assert {rule.place for rule in rules_of(playbook, {}) if rule.resource == "leases"} <= {"gpuops"}

    def test_nobody_makes_or_removes_namespaces(self) -> None:
        assert not any(rule.resource == "namespaces" for playbook in PLAYBOOKS
                       for rule in writes(rules_of(playbook, {})))


class TestComponents:
    @pytest.mark.parametrize("playbook", ["plan", "site", "uninstall"])
    def test_every_kind_is_looked_for(self, playbook: str) -> None:
        listed = {(rule.group, rule.resource) for rule in rules_of(playbook, {}) if "list" in rule.verbs}
        assert listed >= {(kind.group, kind.plural) for kind in KINDS}

    def test_only_kinds_that_lead_are_looked_for_in_every_namespace(self) -> None:
        everywhere = {rule.resource for rule in rules_of("plan", {}) if "list" in rule.verbs and not rule.place}
        assert everywhere.isdisjoint({"configmaps", "secrets", "services", "roles", "rolebindings", "jobs"})

    def test_a_new_component_is_in_every_role(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def make(parameters: Mapping[str, Any]) -> List[Dict[str, Any]]:
            return [*common.cluster_role("new", parameters, [common.rule("", ["persistentvolumes"], ["list"])]),
                    common.namespaced("networking.k8s.io/v1", "NetworkPolicy", "new", "new", parameters, spec={})]

        before = {playbook: rules_of(playbook, {}) for playbook in PLAYBOOKS}
        new = Component("new", "New", ("new",), {}, make)
        monkeypatch.setattr(playbook_rights, "COMPONENTS", {**COMPONENTS, "new": new})
        monkeypatch.setattr(playbook_rights, "BY_DEFAULT", (*BY_DEFAULT, "new"))
        added = {playbook: [(rule.verbs, rule.called, rule.names, rule.place)
                            for rule in beyond(rules_of(playbook, {}), before[playbook])] for playbook in PLAYBOOKS}
        roles = "clusterroles.rbac.authorization.k8s.io"
        assert added["inventory"] == added["validate"] == []
        assert (("get",), roles, ("gpuops-new",), "") in added["plan"]
        assert (("get", "create", "patch"), roles, ("gpuops-new",), "") in added["site"]
        assert (("list",), "persistentvolumes", (), "") in added["site"], "what it grants"
        assert any(called.startswith("networkpolicies") and "create" in verbs and place == "gpuops"
                   for verbs, called, _names, place in added["site"])
        assert (("get", "delete"), roles, ("gpuops-new",), "") in added["uninstall"]

    def test_quotas_of_users_need_nothing_else_of_their_namespaces(self) -> None:
        options = {"device_plugin": {"namespace_quotas": {"team-a": {"nvidia.com/gpu": 8}}}}
        added = {playbook: [(rule.verbs, rule.resource, rule.names, rule.place)
                            for rule in beyond(rules_of(playbook, options), rules_of(playbook, {}))]
                 for playbook in ("plan", "site", "uninstall")}
        assert added["plan"] == [(("get",), "resourcequotas", (), "team-a"), (("get",), "namespaces", ("team-a",), "")]
        assert sorted(added["site"]) == sorted([
            (("get", "create", "patch", "delete"), "resourcequotas", (), "team-a"), added["plan"][1]])
        assert added["uninstall"] == [(("get", "delete"), "resourcequotas", (), "team-a")]

    def test_an_option_that_asks_for_more_is_found(self) -> None:
        found = extras()
        assert {("node_feature_discovery", "topology_updater"), ("node_feature_discovery", "master_replicas"),
                ("dcgm_exporter", "pod_labels_in_metrics"), ("dcgm_exporter", "service_monitor.enabled"),
                ("dcgm_exporter", "network_policy"), ("device_plugin", "runtime_classes"),
                ("gpu_monitoring", "")} <= set(found)
        assert not any(option.startswith("scrape") for _component, option in found)
        updater = found["node_feature_discovery", "topology_updater"]["site"]
        assert [rule.verbs for rule in updater if rule.resource == "nodes/proxy"] == [("get",)]


class TestFiles:
    @pytest.mark.parametrize("playbook", PLAYBOOKS)
    def test_roles_grant_the_rules_and_nothing_else(self, playbook: str) -> None:
        text = (rights_pages.REPOSITORY / rights_pages.DIRECTORY / (playbook + ".yaml")).read_text()
        granted = [rule for role in yaml.safe_load(text)["items"] for rule in granted_by(role)]
        wanted = rules_of(playbook, {})
        assert beyond(wanted, granted) == [] and beyond(granted, wanted) == []

    @pytest.mark.parametrize("program", BESIDE)
    def test_programs_beside_us_have_a_file_that_is_of_their_namespace_alone(self, program: str) -> None:
        text = (rights_pages.REPOSITORY / rights_pages.DIRECTORY / "options" / (program + ".yaml")).read_text()
        roles = yaml.safe_load(text)["items"]
        assert [role["metadata"]["name"] for role in roles] == [
            "gpuops-%s-%s" % (playbook, program) for playbook in ("site", "uninstall")]
        for role in roles:
            granted = granted_by(role)
            assert granted and beyond(granted, BESIDE[program]) == beyond(BESIDE[program], granted) == []
            assert writes(granted) == [] and all(rule.place for rule in granted)

    @pytest.mark.parametrize("option", OF_DRAINS)
    def test_options_of_drains_have_a_file_that_goes_beyond_the_roles(self, option: str) -> None:
        name = option.replace("_", "-")
        text = (rights_pages.REPOSITORY / rights_pages.DIRECTORY / "options" / (name + ".yaml")).read_text()
        for role, playbook in zip(yaml.safe_load(text)["items"], ("site", "uninstall")):
            assert role["metadata"]["name"] == "gpuops-%s-%s" % (playbook, name)
            assert beyond(granted_by(role), OF_DRAINS[option]) == beyond(OF_DRAINS[option], granted_by(role)) == []
            assert beyond(OF_DRAINS[option], rules_of(playbook, {})) == list(OF_DRAINS[option])
            assert "| [`%s`](rbac/options/%s.yaml) | %s | delete pods |" % (option, name, playbook) in (
                rights_pages.REPOSITORY / rights_pages.PAGE).read_text()

    def test_the_namespace_is_not_one_of_ours(self) -> None:
        made = yaml.safe_load(rights_pages.namespace())
        assert set(made["metadata"]["labels"]) == {
            "pod-security.kubernetes.io/" + mode for mode in common.POD_SECURITY}


class TestAsking:
    def test_all_that_is_missing_is_named_at_once(self, client: Client, store: Store) -> None:
        store.denied = {("patch", "nodes"), ("create", "pods"), ("delete", "pods")}
        with pytest.raises(GpuOpsError) as refused:
            require(client, rights_of(ACTS, ["probes"]))
        assert refused.value.code == "cluster.rights_missing"
        assert "patch nodes" in refused.value.found
        assert "create, delete pods in namespace probes" in refused.value.found

    def test_the_subresource_is_asked_for_as_one(self, api: Api, client: Client) -> None:
        require(client, rights_of(["pods"]))
        asked = [request.body["spec"]["resourceAttributes"] for request in api.state.requests]
        assert {"verb": "create", "group": "", "resource": "pods", "subresource": "eviction"} in asked
        assert len(asked) == 7, "each right once"

    def test_nothing_is_asked_for_nothing(self, api: Api, client: Client) -> None:
        require(client, rights_of([]))
        assert api.state.requests == []

    def test_each_name_is_asked_for_where_not_all_are_granted(self, api: Api, client: Client, store: Store) -> None:
        store.denied = {("get", "pods")}
        rule = Rule(("get",), "", "pods", names=("a", "b"))
        with pytest.raises(GpuOpsError):
            require(client, [rule])
        asked = [request.body["spec"]["resourceAttributes"].get("name") for request in api.state.requests]
        assert asked == [None, "a"]
        api.state.requests.clear()
        with pytest.raises(GpuOpsError):
            require(client, [replace(rule, names=("a",))])
        assert len(api.state.requests) == 1

    def test_a_right_to_all_of_a_kind_is_asked_for_beside_one_to_a_name(
        self, client: Client, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.denied.add(("escalate", "roles"))
        role, one = ({"apiVersion": "v1", "kind": kind, "metadata": {"name": "n", "namespace": "gpuops"}, **more}
                     for kind, more in (("Role", {"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": [
                         "get", "create", "patch"]}]}), ("ConfigMap", {})))
        asked: List[Rule] = []
        monkeypatch.setattr(component_rights, "require", lambda client, rules: asked.extend(rules))
        component_rights.require_rights(client, Plan(steps=tuple(
            Step("device_plugin", CREATE, each["kind"], "", parameters={"object": each}) for each in (one, role))))
        assert [rule.names for rule in asked if rule.resource == "configmaps"] == [("n",), ()]

    def test_a_cluster_that_does_not_tell_is_believed(self, api: Api, client: Client) -> None:
        api.state.refuse = type("Answer", (), {"status": 403, "message": "no reviews"})
        require(client, rights_of(ACTS))
        assert may(client, "list", "*", "*") is False and may(client, "patch", "", "nodes", default=True) is True
