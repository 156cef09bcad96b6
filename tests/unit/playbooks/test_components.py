# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One task brings the components to every cluster of a play, with what the hosts of each agree on."""
from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Mapping

import pytest
from canned import Hosts, planned
from cluster_api import TOKEN, Api
from cluster_objects import node
from controller import Controller
from documentation import returned, undocumented
from object_store import Store
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step

ALL = "gpuops.nvidia.gpu_components"
PLUGIN = "gpuops.nvidia.device_plugin"
TASK = {ALL: {"from_variables": True}, "run_once": True}
PLUGIN_SETS = "/apis/apps/v1/namespaces/gpuops/daemonsets/nvidia-device-plugin"
NOWHERE = {"ansible_connection": "ssh", "ansible_host": "192.0.2.1", "ansible_ssh_common_args": "-o ConnectTimeout=1"}


@pytest.fixture
def api(api: Api) -> Api:
    api.state.store = Store(has_controllers=True)
    return api


@pytest.fixture
def other(tmp_path_factory: Any) -> Iterator[Api]:
    server = Api(tmp_path_factory.mktemp("other"))
    server.state.store = Store(has_controllers=True)
    yield server
    server.close()


def two_clusters(api: Api, other: Api) -> Dict[str, str]:
    """Variables of hosts of which gpu-3 is in the second cluster, which it names by address and token."""
    return {"gpu_cluster_kubeconfig": "{{ '' if inventory_hostname == 'gpu-3' else '%s' }}" % api.kubeconfig,
            "gpu_cluster_host": "{{ '%s' if inventory_hostname == 'gpu-3' else '' }}" % other.url,
            "gpu_cluster_api_key": "{{ '%s' if inventory_hostname == 'gpu-3' else '' }}" % TOKEN}


def by_host(values: Mapping[str, Any], default: Any) -> str:
    return "{{ %r.get(inventory_hostname, %r) }}" % (dict(values), default)


HOSTS = ("gpu-1", "gpu-2", "gpu-3")


def answers(controller: Controller, task: Mapping[str, Any], *options: str, **given: Any) -> List[Dict[str, Any]]:
    return [result for task in controller.tasks([task], *options, **given) for result in task]


class TestSeveralClusters:
    def test_each_has_what_its_own_hosts_say_and_a_second_run_writes_nothing(
        self, controller: Controller, api: Api, other: Api
    ) -> None:
        variables = {**two_clusters(api, other), "gpu_cluster_namespace": by_host({"gpu-3": "theirs"}, "gpuops")}
        (told,) = answers(controller, TASK, hosts=HOSTS, variables=variables)
        assert told["changed"] and [cluster["hosts"] for cluster in told["clusters"]] == [["gpu-1", "gpu-2"], ["gpu-3"]]
        assert [cluster["name"] for cluster in told["clusters"]] == [str(api.kubeconfig), other.url]
        assert api.state.store.get("DaemonSet", "gpuops", "nvidia-device-plugin")
        assert other.state.store.get("DaemonSet", "theirs", "nvidia-device-plugin")
        assert list(undocumented(told, returned("gpu_components"))) == []
        for server in (api, other):
            server.state.store.writes.clear()
        (again,) = answers(controller, TASK, hosts=HOSTS, variables=variables)
        assert not again["changed"] and api.state.store.writes == other.state.store.writes == [], again["text"]

    def test_what_goes_wrong_with_one_keeps_no_other_back(self, controller: Controller, api: Api, other: Api) -> None:
        variables = {**two_clusters(api, other), "gpu_cluster_kubeconfig": by_host({"gpu-3": ""}, "/no/kubeconfig")}
        (told,) = answers(controller, TASK, hosts=HOSTS, variables=variables)
        assert told["failed"] and told["code"] == "cluster.kubeconfig_unusable"
        assert told["found"].startswith("/no/kubeconfig: ")
        assert [cluster["failed"] for cluster in told["clusters"]] == [True, False]
        assert other.state.store.get("DaemonSet", "gpuops", "nvidia-device-plugin")

    def test_what_the_environment_says_is_of_no_cluster_that_a_host_names(
        self, controller: Controller, api: Api, other: Api
    ) -> None:
        (told,) = answers(
            controller, TASK, hosts=("gpu-1",), variables={"gpu_cluster_kubeconfig": str(api.kubeconfig)},
            environment={"K8S_AUTH_HOST": other.url, "K8S_AUTH_API_KEY": "of another cluster"})
        assert told["changed"] and other.state.requests == [], told

    def test_no_credential_of_the_environments_server_goes_to_another(
        self, controller: Controller, api: Api, other: Api
    ) -> None:
        (told,) = answers(
            controller, TASK, hosts=("gpu-1",), variables={"gpu_cluster_host": api.url},
            environment={"K8S_AUTH_HOST": other.url, "K8S_AUTH_API_KEY": "of another cluster"})
        assert told["failed"] and other.state.requests == []
        assert not any(request.header("Authorization") for request in api.state.requests)

    def test_a_token_is_on_no_screen_and_in_no_result(self, controller: Controller, api: Api, other: Api) -> None:
        secret = "eyJhbGciOiJub25lIn0.of.gpu-3"
        play = controller.directory / "play.json"
        play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [
            {ALL: {"from_variables": True, "show": True}, "run_once": True, "ignore_errors": True, "register": "told"},
            {"ansible.builtin.debug": {"var": "told"}, "run_once": True}]}]))
        done = controller.play(str(play), "-vvvv", "--diff", hosts=HOSTS, variables={
            **two_clusters(api, other), "gpu_cluster_api_key": secret})
        assert "cluster.credentials_refused" in done.stdout
        assert secret not in done.stdout + done.stderr


class TestHostsOfOneClusterHaveOneWord:
    @pytest.mark.parametrize("name, values, told", [
        ("device_plugin_config", {"gpu-2": {"flags": {"migStrategy": "single"}}}, '"migStrategy":"single"'),
        ("gpu_cluster_namespace", {"gpu-2": "elsewhere"}, "elsewhere on gpu-2"),
        ("gpu_cluster_impersonate_user", {"gpu-2": "ann"}, "ann on gpu-2"),
        ("gpu_cluster_runtime_class_scheduling", {"gpu-2": {"node_selector": {"a": "b"}}}, '"node_selector":{"a":"b"}'),
    ])
    def test_who_says_something_else_is_named(
        self, controller: Controller, api: Api, name: str, values: Dict[str, Any], told: str
    ) -> None:
        (answer,) = answers(controller, TASK, hosts=HOSTS, variables={
            "gpu_cluster_kubeconfig": str(api.kubeconfig),
            name: by_host(values, "gpuops" if isinstance(values["gpu-2"], str) else {})})
        assert answer["code"] == "cluster.hosts_disagree" and told in answer["found"], answer
        assert answer["option"] == name and "`%s`" % name in answer["found"]
        assert "on gpu-1, gpu-3" in answer["found"] and api.state.store.writes == []

    def test_a_component_that_says_something_else_of_what_all_share_is_named(
        self, controller: Controller, api: Api
    ) -> None:
        (answer,) = answers(controller, TASK, hosts=HOSTS, variables={
            "gpu_cluster_kubeconfig": str(api.kubeconfig), "dcgm_exporter_runtime_class_scheduling": {
                "node_selector": {"a": "b"}}})
        assert answer["code"] == "cluster.components_disagree", answer
        assert answer["option"] == "dcgm_exporter_runtime_class_scheduling" and api.state.store.writes == []

    def test_a_secret_that_they_disagree_on_is_not_shown(self, controller: Controller, api: Api) -> None:
        (answer,) = answers(controller, TASK, hosts=HOSTS, variables={
            "gpu_cluster_host": api.url, "gpu_cluster_api_key": by_host({"gpu-2": "secret-of-2"}, "secret-of-all")})
        assert answer["code"] == "cluster.hosts_disagree" and "gpu_cluster_api_key" in answer["found"], answer
        assert "secret-of" not in json.dumps(answer) and api.state.requests == []

    def test_a_configuration_of_a_name_that_nobody_knows_is_refused(self, controller: Controller, api: Api) -> None:
        (answer,) = answers(controller, TASK, hosts=HOSTS, variables={
            "gpu_cluster_kubeconfig": str(api.kubeconfig), "device_plugin_configs": {"shared": {}},
            "device_plugin_config_name": by_host({"gpu-1": "shared", "gpu-3": "shraed"}, "")})
        assert answer["code"] == "cluster.unknown_choice", answer
        assert "shraed on gpu-3" in answer["found"] and "shared" in answer["wanted"] and api.state.store.writes == []

    def test_a_variable_that_is_no_such_thing_is_named(self, controller: Controller, api: Api) -> None:
        (answer,) = answers(controller, TASK, hosts=HOSTS, variables={
            "gpu_cluster_kubeconfig": str(api.kubeconfig), "dcgm_exporter_port": "many"})
        assert answer["code"] == "variables.malformed" and "dcgm_exporter_port" in answer["found"], answer

    def test_a_refusal_names_the_variable(self, controller: Controller, api: Api) -> None:
        (answer,) = answers(controller, TASK, hosts=HOSTS, variables={
            "gpu_cluster_kubeconfig": str(api.kubeconfig), "device_plugin_env": {"MIG_STRATEGY": "none"}})
        assert answer["code"] == "cluster.two_places_of_a_setting" and "device_plugin_" in answer["msg"], answer


class TestOneComponent:
    def test_options_of_the_task_name_the_one_cluster(self, controller: Controller, api: Api) -> None:
        (told,) = answers(controller, {PLUGIN: {
            "kubeconfig": str(api.kubeconfig), "namespace": "mine", "image": {"repository": "mirror/plugin"}}})
        assert told["changed"] and list(undocumented(told, returned("device_plugin"))) == [], told
        (container,) = api.state.store.get("DaemonSet", "mine", "nvidia-device-plugin")["spec"]["template"]["spec"][
            "containers"]
        assert container["image"].startswith("mirror/plugin:v")

    @pytest.mark.parametrize("options", [("--check",), ("--check", "--diff")])
    def test_check_mode_is_the_plan_also_where_there_is_no_namespace_yet(
        self, controller: Controller, api: Api, options: Any
    ) -> None:
        task = {PLUGIN: {"kubeconfig": str(api.kubeconfig)}}
        (foretold,) = answers(controller, task, *options)
        assert foretold["changed"] and api.state.store.writes == []
        assert "object.create" in foretold["text"] and "DaemonSet gpuops/nvidia-device-plugin" in foretold["text"]
        assert bool(foretold.get("diff")) == ("--diff" in options)
        (done,) = answers(controller, task)
        assert [cluster["plan"]["steps"] for cluster in done["clusters"]] == [
            cluster["plan"]["steps"] for cluster in foretold["clusters"]]

    def test_what_the_gpu_operator_manages_is_refused(self, controller: Controller, api: Api) -> None:
        api.state.nodes = [node("gpu-1", labels={"nvidia.com/gpu.deploy.operator-validator": "true"})]
        (told,) = answers(controller, {PLUGIN: {"kubeconfig": str(api.kubeconfig)}})
        assert told["code"] == "cluster.managed_by_gpu_operator" and api.state.store.writes == [], told

    def test_an_option_that_there_is_not_is_refused(self, controller: Controller, api: Api) -> None:
        (told,) = answers(controller, {PLUGIN: {"kubeconfig": str(api.kubeconfig), "imgae": {}}})
        assert told["code"] == "cluster.options_malformed" and "imgae" in told["msg"] and api.state.requests == []


def test_they_leave_in_one_task_and_take_with_them_what_they_shared(controller: Controller, api: Api) -> None:
    variables = {"gpu_cluster_kubeconfig": str(api.kubeconfig)}
    before = api.state.store.snapshot()
    answers(controller, {ALL: {"from_variables": True, "components": ["gpu_feature_discovery", "device_plugin"]}},
            hosts=("gpu-1",), variables=variables)
    assert api.state.store.snapshot() != before
    (told,) = answers(controller, {ALL: {"from_variables": True, "state": "absent"}}, hosts=("gpu-1",),
                      variables=variables)
    assert told["changed"] and api.state.store.snapshot() == before, told["text"]


def test_a_first_host_that_does_not_answer_keeps_no_other_back(controller: Controller, api: Api) -> None:
    play = controller.directory / "play.json"
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "strategy": "linear", "tasks": [
        {"ansible.builtin.ping": {}}, {"ansible.builtin.include_role": {"name": PLUGIN}}]}]))
    done = controller.play(str(play), hosts=HOSTS, variables={
        "gpu_cluster_kubeconfig": str(api.kubeconfig),
        **{name: by_host({"gpu-1": value}, {"ansible_connection": "local"}.get(name, ""))
           for name, value in NOWHERE.items()}})
    assert "gpu-1                      : ok=0    changed=0    unreachable=1" in done.stdout, done.stdout
    assert api.state.store.get("DaemonSet", "gpuops", "nvidia-device-plugin"), done.stdout


class TestTheNode:
    def play(self, controller: Controller, api: Api, *points: str, **variables: Any) -> List[List[Dict[str, Any]]]:
        return controller.tasks(
            [{"ansible.builtin.include_role": {"name": "gpuops.nvidia.node_maintenance", "tasks_from": point}}
             for point in points], hosts=("gpu-1",),
            variables={"gpu_cluster_kubeconfig": str(api.kubeconfig), "node_maintenance_timeout": 1, **variables})

    def labels(self, api: Api) -> Dict[str, str]:
        found: Dict[str, str] = api.state.nodes[0]["metadata"]["labels"]
        return {name: value for name, value in found.items() if "config" in name or "metrics" in name}

    def test_it_says_which_configurations_its_host_chooses(self, controller: Controller, api: Api) -> None:
        """What somebody else has chosen for it stays."""
        api.state.nodes = [node("gpu-1", labels={"gpuops.nvidia.com/dcgm-exporter.metrics": "theirs"})]
        self.play(controller, api, "label", device_plugin_config_name="shared")
        assert self.labels(api) == {"nvidia.com/device-plugin.config": "shared",
                                    "gpuops.nvidia.com/dcgm-exporter.metrics": "theirs"}
        self.play(controller, api, "label")
        assert self.labels(api) == {"gpuops.nvidia.com/dcgm-exporter.metrics": "theirs"}

    def pod(self, api: Api, name: str, app: str, place: str = "gpu-1", part_of: str = "gpuops",
            selects: str = "nvidia.com/gpu.deploy.device-plugin") -> None:
        api.state.store.put({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": name, "namespace": "gpuops", "labels": {
                "app.kubernetes.io/name": app, "app.kubernetes.io/part-of": part_of}},
            "spec": {"nodeName": place, "nodeSelector": {selects: "true"}}})

    def test_components_of_every_group_are_waited_for_and_nothing_else(self, controller: Controller, api: Api) -> None:
        api.state.nodes = [node("gpu-1")]
        self.pod(api, "worker", "node-feature-discovery")
        self.pod(api, "elsewhere", "nvidia-device-plugin", place="gpu-2")
        self.pod(api, "mine", "nvidia-device-plugin", part_of="mine")
        self.play(controller, api, "label")
        waited = self.play(controller, api, "take", "give_back")
        assert not any(result.get("failed") for task in waited for result in task), waited
        self.pod(api, "slow", "nvidia-device-plugin-mps-shared")
        (told,) = self.play(controller, api, "take")[-1]
        assert told["code"] == "cluster.components_stay" and "on node gpu-1: gpuops/slow." in told["msg"], told

    def test_they_are_waited_for_too_where_an_earlier_run_has_taken_the_labels(
        self, controller: Controller, api: Api
    ) -> None:
        api.state.nodes = [node("gpu-1")]
        self.pod(api, "slow", "nvidia-device-plugin")
        (told,) = self.play(controller, api, "take")[-1]
        assert told["code"] == "cluster.components_stay", told
        foretold = controller.tasks(
            [{"ansible.builtin.include_role": {"name": "gpuops.nvidia.node_maintenance", "tasks_from": "take"}}],
            "--check", hosts=("gpu-1",), variables={"gpu_cluster_kubeconfig": str(api.kubeconfig)})
        assert not any(result.get("failed") for task in foretold for result in task), foretold

    @pytest.mark.parametrize("selects", ["nvidia.com/gpu.deploy.device-plugin", "example.com/gpus"])
    def test_what_a_label_of_others_admits_is_not_waited_for(
        self, controller: Controller, api: Api, selects: str
    ) -> None:
        api.state.nodes = [node("gpu-1", labels={selects: "true"})]
        self.pod(api, "stays", "nvidia-device-plugin", selects=selects)
        self.play(controller, api, "label")
        taken = self.play(controller, api, "take")
        assert not any(result.get("failed") for task in taken for result in task), taken


def test_the_validation_judges_by_the_configuration_that_the_host_has(controller: Controller, api: Api) -> None:
    """Completed with the defaults: a configuration that says only how GPUs are shared has the strategy 'mixed'."""
    sharing = {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}
    there = {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "7"}
    api.state.nodes = [node("gpu-1", allocatable=there, capacity=there)]
    task = {"gpuops.nvidia.gpu_validation": {
        "from_variables": True, "scope": ["cluster"], "node_name": "gpu-1", "pod": False, "timeout": 0}}
    common = {"gpu_cluster_kubeconfig": str(api.kubeconfig),
              "device_plugin_configs": {"shared": sharing, "empty": None},
              "gpu_validation_devices": {"whole": 2, "divided": 1, "empty": 0, "mig": {"1g.10gb": 7}}}
    told = [answers(controller, task, hosts=("gpu-1",), variables={**common, **more})[0] for more in (
        {"device_plugin_config": sharing}, {"device_plugin_config_name": "shared"}, {},
        {"device_plugin_config_name": "shraed"},
        {"device_plugin_config": sharing, "device_plugin_config_name": "empty"})]
    assert [each.get("code", "broken" if each.get("failed") else "passed") for each in told] == [
        "passed", "passed", "validation.check_failed", "cluster.unknown_choice", "passed"], told


class TestPlaybooks:
    def told(self, in_words: Hosts, playbook: str, *options: str, steps: Any = (), **variables: Any) -> str:
        in_words.api.state.nodes = in_words.api.state.nodes or [node("gpu-1")]
        done = in_words.controller.play(
            "gpuops.nvidia." + playbook, *options, hosts=("gpu-1",),
            environment={"ANSIBLE_COLLECTIONS_PATH": str(in_words.root)}, variables={
                "gpu_cluster_kubeconfig": str(in_words.api.kubeconfig),
                "canned": {"gpu_plan": planned(Plan(steps=steps))}, **variables})
        return done.stdout + done.stderr

    def test_the_plan_shows_the_clusters_beside_the_hosts(self, in_words: Hosts) -> None:
        told = self.told(in_words, "plan")
        assert "object.create DaemonSet gpuops/nvidia-device-plugin" in told, told
        assert "changed=0" in told and in_words.api.state.store.writes == []

    def test_site_brings_them_and_a_second_one_writes_nothing(self, in_words: Hosts) -> None:
        store = in_words.api.state.store
        assert "failed=0" in self.told(in_words, "site")
        assert store.get("DaemonSet", "gpuops", "nvidia-dcgm-exporter")
        store.writes.clear()
        again = self.told(in_words, "site")
        assert "changed=0" in again and "failed=0" in again and store.writes == [], again

    def test_what_is_refused_is_refused_before_a_host_is_changed(self, in_words: Hosts) -> None:
        in_words.api.state.store.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuops"}})
        in_words.api.state.store.put({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "spec": {"selector": {"matchLabels": {"app": "theirs"}}},
            "metadata": {"name": "nvidia-device-plugin", "namespace": "gpuops", "labels": {}}})
        step = Step("runtime", "service.restart", "crio.service", "It reads the file.", Disruption.runtime_restart)
        told = self.told(in_words, "site", steps=(step,))
        assert "[cluster.object_of_another]" in told and "failed=1" in told, told
        assert "Tell the hosts that come after" not in told and in_words.calls("gpu_driver") == 0
        told = self.told(in_words, "site", "--tags", "hosts", steps=(step,))
        assert "Tell the hosts that come after" in told, told

    def test_a_quota_of_a_namespace_that_is_not_there_keeps_nothing_back_and_is_named(self, in_words: Hosts) -> None:
        store = in_words.api.state.store
        told = self.told(in_words, "site", device_plugin_namespace_quotas={"team-a": {"nvidia.com/gpu": 8}})
        assert "failed=0" in told and store.get("DaemonSet", "gpuops", "nvidia-dcgm-exporter"), told
        words = " ".join(told.split())
        assert "there is no namespace team-a: ResourceQuota team-a/nvidia-gpu waits for it" in words, told

    def test_a_right_to_the_probe_is_missed_whichever_host_has_it(self, in_words: Hosts) -> None:
        in_words.api.state.nodes = [node("gpu-1"), node("gpu-2")]
        in_words.api.state.store.denied.add(("delete", "pods"))

        def told(pods: Mapping[str, bool]) -> str:
            return in_words.controller.play(
                "gpuops.nvidia.site", hosts=("gpu-1", "gpu-2"),
                environment={"ANSIBLE_COLLECTIONS_PATH": str(in_words.root)}, variables={
                    "gpu_cluster_kubeconfig": str(in_words.api.kubeconfig), "gpu_validation_pod": by_host(pods, True),
                    "canned": {"gpu_plan": planned(Plan())}}).stdout
        assert "[cluster.rights_missing]" in told({"gpu-1": False})
        assert "[cluster.rights_missing]" not in told({"gpu-1": False, "gpu-2": False})


class TestWhichComponents:
    """As the playbooks ask for them."""

    def told(self, controller: Controller, **variables: Any) -> Any:
        task = {"ansible.builtin.include_tasks": str(REPOSITORY / "playbooks/tasks/components.yml"),
                "vars": {"gpu_cluster_brought": {"failed": False}}}
        return controller.tasks([task], hosts=HOSTS, variables=variables)

    def sets(self, server: Api) -> List[str]:
        return [item["metadata"]["name"] for item in server.state.store.objects.values()
                if item["kind"] == "DaemonSet"]

    def test_each_cluster_has_those_that_its_own_hosts_name(
        self, controller: Controller, api: Api, other: Api
    ) -> None:
        told = self.told(controller, **two_clusters(api, other), gpu_components=by_host(
            {"gpu-3": ["device_plugin"]}, ["gpu_feature_discovery"]))
        assert (self.sets(api), self.sets(other)) == (["gpu-feature-discovery"], ["nvidia-device-plugin"]), told

    def test_hosts_of_one_that_name_different_ones_are_refused(self, controller: Controller, api: Api) -> None:
        told = self.told(controller, gpu_cluster_kubeconfig=str(api.kubeconfig), gpu_components=by_host(
            {"gpu-1": ["device_plugin"]}, ["gpu_feature_discovery"]))
        answer = told[1][0]
        assert (answer["code"], answer["option"]) == ("cluster.hosts_disagree", "gpu_components"), answer
        assert api.state.store.writes == []

    def test_one_that_there_is_not_is_refused(self, controller: Controller, api: Api) -> None:
        told = self.told(controller, gpu_cluster_kubeconfig=str(api.kubeconfig), gpu_components=["device_plugni"])
        assert "device_plugni" in told[1][0]["msg"] and api.state.store.writes == [], told
