# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The drain itself, over a real connection: every answer that the server has for an eviction, every end of a pod."""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

import pytest
from clock import Time
from cluster_api import Answer, Api, Fault, blocked
from cluster_objects import node, pod

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.carrying_out import Drain, NodeDrain, look
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.judgement import WAITS
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.policy import policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.preview import Preview
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.pods import pod_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.times import epoch

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
PATH = "/api/v1/namespaces/team/pods/a"


class World:
    """One node, its drain and its time. asleep: what happens meanwhile, with the seconds since the drain began."""

    def __init__(self, api: Api, client: Client) -> None:
        api.state.store = None
        self.api = api
        self.client = client
        self.lines: List[str] = []
        self.asleep: Callable[[float], None] = lambda now: None
        self.began = epoch("2026-01-01T00:00:00Z")
        self.time = Time(lambda now: self.asleep(now))

    def see(self, **options: Any) -> Preview:
        self.policies = {"gpu-1": policy_of(options)}
        return look(self.client, self.policies, self.time.sleep, self.now)

    def drain(self) -> Drain:
        return Drain(self.client, "gpu-1", self.policies["gpu-1"], self.lines.append, self.time.clock, self.time.sleep,
                     self.now)

    def now(self) -> float:
        return self.began + self.time.now

    def run(self, **options: Any) -> Dict[str, Any]:
        seen = self.see(**options)
        return self.drain().run(seen)

    def fails(self, **options: Any) -> GpuOpsError:
        with pytest.raises(GpuOpsError) as failed:
            self.run(**options)
        return failed.value

    def there(self) -> List[str]:
        return [each["metadata"]["name"] for each in self.api.state.pods]

    def asked(self, method: str = "POST") -> int:
        return len([each for each in self.api.state.requests if each.method == method])


@pytest.fixture
def world(api: Api, client: Client) -> World:
    return World(api, client)


def names(pods: List[Dict[str, Any]]) -> List[str]:
    return [each["name"] for each in pods]


class TestThatComesBack:
    """Who tolerates the cordon gets GPUs as long as there is a device plugin, which leaves after the drain."""

    def node_drain(self, world: World, **options: Any) -> NodeDrain:
        return NodeDrain(world.client, "gpu-1", policy_of(options), world.lines.append, world.time.clock,
                         world.time.sleep, world.now)

    def test_nothing_has_and_that_costs_one_list(self, world: World) -> None:
        world.api.state.pods = [pod("a"), pod("agent", owner="DaemonSet"), pod("web", gpus=0)]
        drain = self.node_drain(world)
        done = drain.go(False)
        world.api.state.requests.clear()
        assert drain.follow(done) == done
        assert [each.path for each in world.api.state.requests] == ["/api/v1/pods"]

    @pytest.mark.parametrize("options", [{}, {"scope": "node"}, {"pods": ["team/a"]}], ids=str)
    def test_what_has_with_gpus_is_drained_too_and_no_other(self, world: World, options: Dict[str, Any]) -> None:
        world.api.state.pods = [pod("a"), pod("agent", owner="DaemonSet")]
        drain, proofs = self.node_drain(world, **options), []
        if "pods" in options:
            world.api.state.pods.append(pod("neighbour"))
        done = drain.go(False)
        world.api.state.pods += [pod("b"), pod("web", gpus=0), pod("agent-2", owner="DaemonSet")]
        told = drain.follow(done, lambda: proofs.append(world.there()))
        assert names(told["evicted"]) == ["a", "b"] and told["changed"] and len(proofs) == 1
        assert set(world.there()) - {"neighbour"} == {"agent", "web", "agent-2"}
        assert ("neighbour" in world.there()) == ("pods" in options)

    def test_what_does_again_and_again_has_the_time_of_the_drain(self, world: World) -> None:
        world.api.state.pods = [pod("a")]
        drain = self.node_drain(world, timeout=3)
        done = drain.go(False)

        def come(now: float) -> None:
            if not world.there():
                world.api.state.pods.append(pod("b-%d" % (now * 100)))

        come(0)
        world.asleep = come
        with pytest.raises(GpuOpsError) as failed:
            drain.follow(done)
        assert failed.value.code == "cluster.pods_not_evicted" and world.time.now < 3 + 1


class TestThatGoes:
    def test_only_gpu_pods_of_this_node_go(self, world: World) -> None:
        world.api.state.pods = [pod("a"), pod("web", gpus=0), pod("elsewhere", node_name="gpu-2"),
                                pod("agent", owner="DaemonSet")]
        done = world.run()
        assert names(done["evicted"]) == ["a"] and names(done["stayed"]) == ["agent"] and done["changed"]
        assert world.there() == ["web", "elsewhere", "agent"]
        eviction = next(each for each in world.api.state.requests if each.method == "POST")
        assert eviction.body["deleteOptions"] == {"preconditions": {"uid": "uid-a"}}

    def test_the_whole_node_goes_where_that_is_asked_for(self, world: World) -> None:
        world.api.state.pods = [pod("a"), pod("web", gpus=0), pod("done", gpus=0, phase="Succeeded")]
        assert names(world.run(scope="node")["evicted"]) == ["a", "done", "web"] and world.there() == []

    @pytest.mark.parametrize("named, gone", [
        (None, ["a", "b"]), (["team/b"], ["b"]), (["uid-a", "team/elsewhere"], ["a"]), (["team/web"], ["web"]),
        ([], [])])
    def test_those_that_are_named_go_and_no_others(self, world: World, named: Optional[List[str]], gone: List[str]
                                                   ) -> None:
        world.api.state.pods = [pod("a"), pod("b"), pod("web", gpus=0), pod("elsewhere", node_name="gpu-2")]
        done = world.run(pods=named)
        assert names(done["evicted"]) == gone and done["changed"] == bool(gone)

    def test_with_the_grace_that_is_given(self, world: World) -> None:
        world.api.state.pods = [pod("a")]
        world.run(grace_period=0)
        eviction = next(each for each in world.api.state.requests if each.method == "POST")
        assert eviction.body["deleteOptions"]["gracePeriodSeconds"] == 0

    def test_a_free_node_costs_one_list(self, world: World) -> None:
        world.api.state.pods = [pod("web", gpus=0)]
        assert not world.run()["changed"]
        assert [each.path for each in world.api.state.requests] == ["/api/v1/pods"]

    def test_no_pod_is_evicted_from_a_node_that_is_not_ours_any_more(self, world: World) -> None:
        world.api.state.pods = [pod("a"), pod("b")]
        seen, there = world.see(), []

        def proof() -> None:
            there.append(len(world.there()))
            if len(there) > 1:
                raise GpuOpsError("cluster.custody_lost", "another run has it", "ours", "run again")

        drain = Drain(world.client, "gpu-1", world.policies["gpu-1"], proof=proof)
        drain.ask(seen)
        assert there == []
        with pytest.raises(GpuOpsError, match="custody_lost"):
            drain.run(seen)
        assert there == [2, 1] and world.there() == ["b"]

    @pytest.mark.parametrize("disable_eviction, method", [(False, "POST"), (True, "DELETE")])
    def test_nor_is_an_eviction_sent_once_more_from_one_that_is_not(
        self, world: World, disable_eviction: bool, method: str
    ) -> None:
        """A server that is busy is asked again for longer than a Lease may last."""
        world.api.state.pods = [pod("a")]
        world.see(disable_eviction=disable_eviction)
        world.api.state.fault = Fault("503")
        asked: List[int] = []

        def proof() -> None:
            asked.append(world.asked(method))
            if asked[-1]:
                raise GpuOpsError("cluster.custody_lost", "another run has it", "ours", "run again")

        drain = Drain(world.client, "gpu-1", world.policies["gpu-1"], proof=proof)
        with pytest.raises(GpuOpsError, match="custody_lost"):
            drain.evict(pod_of(pod("a")))
        assert asked == [0, 1] and world.there() == ["a"]

    def test_refused_before_anything_is_touched(self, world: World) -> None:
        world.api.state.pods = [pod("a"), pod("precious", owner=None)]
        refused = world.fails()
        assert refused.code == "cluster.pods_without_controller" and "precious" in refused.found
        assert world.asked() == 0

    def test_what_is_refused_of_others_is_in_nobodys_way(self, world: World) -> None:
        world.api.state.pods = [pod("a"), pod("precious", owner=None)]
        assert world.run(pods=["team/a"])["changed"]
        assert world.there() == ["precious"]


class TestAnswers:
    def test_a_disruption_budget_is_asked_again_until_it_allows(self, world: World) -> None:
        world.api.state.pods = [pod("a"), pod("b")]
        world.api.state.evictions = {"b": [blocked("b")] * 3}
        assert world.run(timeout=60)["changed"]
        assert world.there() == [] and world.time.now > 10

    def test_one_that_never_allows_is_named_and_since_when(self, world: World) -> None:
        world.api.state.pods = [pod("a"), pod("b")]
        world.api.state.evictions = {"a": [blocked("web")] * 999}
        failed = world.fails(timeout=300)
        assert failed.code == "cluster.pods_not_evicted" and world.there() == ["a"]
        assert "after 5 min 0 s node gpu-1 still has 1 of 2 pods that were to go: team/a (" in failed.found
        assert "disruption budget web needs 1 healthy pods and has 1 currently, for 5 min 0 s)" in failed.found
        assert 40 < world.asked() < 63, "not in a tight loop, and not once"
        assert names(failed.details["pods"]) == ["a"]

    def test_a_budget_that_is_worked_out_is_asked_when_it_says(self, world: World) -> None:
        world.api.state.pods = [pod("a")]
        busy = Answer(429, "it is still being processed", ("DisruptionBudget", "web"), "10")
        world.api.state.evictions = {"a": [busy]}
        world.run(timeout=60)
        assert world.time.now >= 10

    def test_a_busy_server_is_not_taken_for_a_budget(self, world: World) -> None:
        world.api.state.pods = [pod("a")]
        world.api.state.evictions = {"a": [Answer(429, "too many requests", ("", ""), "1")] * 3}
        world.run(timeout=60)
        assert 3 <= world.time.now < 10, "as often as the server says"
        world.api.state.pods = [pod("a")]
        world.api.state.evictions = {"a": [Answer(429, "too many requests", ("", ""), "1")] * 999}
        assert "the API server is busy: too many requests" in world.fails(timeout=30).found

    def test_a_webhook_that_says_not_yet_is_asked_again(self, world: World) -> None:
        world.api.state.pods = [pod("a")]
        world.api.state.evictions = {"a": [Answer(429, "Eviction triggered evacuation of VMI team/a")] * 2}
        assert world.run(timeout=60)["changed"] and world.time.now >= 10

    def test_a_pod_of_a_namespace_that_ends_goes_with_it(self, world: World) -> None:
        world.api.state.pods = [pod("a")]
        world.api.state.evictions = {"a": [Answer(403, "it is being terminated", ("NamespaceTerminating", "x"))] * 99}
        world.asleep = lambda now: world.api.state.pods.clear() if now > 20 else None
        assert not world.run(timeout=60)["changed"]

    def test_one_that_is_known_to_is_not_evicted_at_all(self, world: World) -> None:
        world.api.state.pods = [pod("a")]
        world.api.state.lists["/api/v1/namespaces"] = [
            {"metadata": {"name": "team", "deletionTimestamp": "2026-01-01T00:00:00Z"}}]
        world.asleep = lambda now: world.api.state.pods.clear() if now > 20 else None
        done = world.run(timeout=60)
        assert names(done["waiting"]) == ["a"] and world.asked() == 0

    def test_two_budgets_that_came_meanwhile_are_no_reason_to_wait(self, world: World) -> None:
        """Those that go meanwhile are waited for."""
        world.api.state.pods = [pod("a"), pod("b")]
        world.api.state.evictions = {
            "a": [Answer(500, "This pod has more than one PodDisruptionBudget, which is not supported.")] * 99,
            "b": [blocked("b")] * 2}
        failed = world.fails(timeout=300)
        assert "several disruption budgets" in failed.found and world.there() == ["a"] and world.time.now < 60

    def test_what_a_webhook_denies_for_good_is_no_reason_to_wait(self, world: World) -> None:
        world.api.state.pods = [pod("a")]
        world.api.state.evictions = {"a": [Answer(403, 'admission webhook "x" denied the request: never')] * 99}
        assert "denied the request: never" in world.fails(timeout=300).found and world.time.now < 1

    def test_a_right_that_is_missing_ends_it(self, world: World) -> None:
        world.api.state.pods = [pod("a")]
        world.api.state.evictions = {"a": [Answer(403, 'pods "a" is forbidden: User "x" cannot create')]}
        assert world.fails(timeout=300).code == "cluster.right_missing"

    def test_too_many_unconfirmed_disruptions_are_asked_again(self, world: World) -> None:
        world.api.state.pods = [pod("a")]
        world.api.state.evictions = {"a": [Answer(
            403, 'poddisruptionbudgets "x" is forbidden: DisruptedPods map too big - too many evictions')]}
        assert world.run(timeout=60)["changed"]

    @pytest.mark.parametrize("kind", ["500", "503", "504", "reset", "lost"])
    def test_a_server_that_is_out_of_order_for_a_moment_keeps_no_pod(self, world: World, kind: str) -> None:
        world.api.state.pods = [pod("a")]
        seen = world.see()
        for number in (1, 2):
            world.api.state.pods = [pod("a")]
            world.api.state.fault = Fault(kind, len(world.api.state.requests) + number)
            world.drain().run(seen)
            assert world.api.state.pods == [], "the GET, then the eviction"


class TestAnotherPod:
    """Those of a StatefulSet come back elsewhere under their names."""

    def come_back(self, world: World) -> None:
        world.api.state.pods[0] = pod("db-0", owner="StatefulSet", node_name="gpu-2", uid="uid-of-the-next")

    def test_is_left_alone_that_came_before_its_turn(self, world: World) -> None:
        world.api.state.pods = [pod("db-0", owner="StatefulSet"), pod("a")]
        seen = world.see()
        self.come_back(world)
        world.drain().run(seen)
        assert [each["metadata"]["uid"] for each in world.api.state.pods] == ["uid-of-the-next"]
        assert [each.path for each in world.api.state.requests if each.method == "POST"] == [PATH + "/eviction"], (
            "a precondition that fails spends the budget")

    def test_is_not_waited_for(self, world: World) -> None:
        world.api.state.pods = [pod("db-0", owner="StatefulSet")]
        world.api.state.terminating = {"db-0"}
        world.asleep = lambda now: self.come_back(world)
        assert world.run(timeout=300)["changed"] and world.time.now < 1

    def test_is_left_alone_on_another_node(self, world: World) -> None:
        world.api.state.pods = [pod("a")]
        seen = world.see()
        world.api.state.pods[0]["spec"]["nodeName"] = "gpu-2"
        world.drain().run(seen)
        assert world.asked() == 0

    def test_is_left_alone_that_came_in_between(self, world: World) -> None:
        world.api.state.pods = [pod("a")]
        world.api.state.evictions = {"a": [Answer(409, "the UID in the precondition does not match")]}
        world.asleep = lambda now: world.api.state.pods.__setitem__(0, pod("a", uid="uid-of-the-next"))
        assert not world.run(timeout=60)["changed"] and world.asked() == 1


class TestWaiting:
    def test_a_terminating_pod_is_waited_for_and_not_evicted(self, world: World) -> None:
        world.api.state.pods = [pod("a", owner=None, deletionTimestamp="2026-01-01T00:00:30Z")]
        world.asleep = lambda now: world.api.state.pods.clear() if now > 20 else None
        done = world.run(timeout=60)
        assert names(done["waiting"]) == ["a"] and not done["changed"] and world.asked() == 0

    def test_a_pod_that_does_not_end_is_named(self, world: World) -> None:
        world.api.state.pods = [pod("a")]
        world.api.state.terminating = {"a"}
        failed = world.fails(timeout=30)
        assert "team/a (terminating, to have ended by 2026-01-01T00:00:30Z, for 30 s)" in failed.found
        assert world.asked() == 1 and len(failed.refusals) == 1

    def test_a_pod_whose_containers_have_ended_is_gone(self, world: World) -> None:
        """The object may be kept, as the Job's controller keeps it until it has counted it."""
        world.api.state.pods = [pod("a")]
        world.api.state.terminating = {"a"}
        world.asleep = lambda now: world.api.state.pods[0]["status"].update(phase="Failed")
        assert world.run(timeout=60)["changed"] and world.time.now < 1

    @pytest.mark.parametrize("kept", ["by a finalizer", "by its namespace", "by a finalizer meanwhile"])
    def test_a_pod_that_had_ended_before_is_gone_whatever_keeps_its_object(self, world: World, kept: str) -> None:
        leaving = {"deletionTimestamp": "2026-01-01T00:00:30Z", "finalizers": ["batch.kubernetes.io/job-tracking"]}
        done = pod("done", gpus=0, phase="Succeeded", namespace="ending",
                   **(leaving if kept == "by a finalizer" else {}))
        world.api.state.pods = [pod("web", gpus=0), done]
        if kept == "by its namespace":
            world.api.state.lists["/api/v1/namespaces"] = [
                {"metadata": {"name": "ending", "deletionTimestamp": "2026-01-01T00:00:00Z"}}]
        seen = world.see(scope="node", timeout=60)
        if kept == "by a finalizer meanwhile":
            done["metadata"].update(leaving)
        world.drain().run(seen)
        assert world.there() == ["done"] and world.asked() == 1 and world.time.now < 1

    def test_nobody_waits_for_a_silent_kubelet(self, world: World) -> None:
        """It had not been silent for long enough when the drain began."""
        world.api.state.nodes = [node("gpu-1")]
        world.api.state.pods = [pod("a"), pod("b")]
        world.api.state.terminating = {"a"}
        world.asleep = lambda now: world.api.state.nodes.__setitem__(0, node("gpu-1", ready=False))
        failed = world.fails(timeout=60)
        assert [each.code for each in failed.refusals] == ["cluster.pods_not_evicted", "cluster.kubelet_silent"]
        assert "has team/a" in failed.refusals[1].found and "team/b" not in failed.refusals[1].found
        seen = world.fails()
        assert seen.code == "cluster.kubelet_silent" and world.time.now == 60, "now it is known before"

    def test_what_does_not_end_is_left_behind_where_that_is_allowed(self, world: World) -> None:
        world.api.state.nodes = [node("gpu-1", ready=False)]
        world.api.state.pods = [pod("a"), pod("old", deletionTimestamp="2026-01-01T00:00:30Z")]
        world.api.state.terminating = {"a"}
        done = world.run(timeout=300, skip_wait_for_delete_timeout=60)
        assert names(done["left"]) == ["a", "old"] and done["stayed"] == [] and 90 < world.time.now < 100
        assert "should have ended by 2026-01-01T00:00:30Z" in done["left"][0]["reason"]

    def test_what_should_have_ended_before_is_left_behind_in_check_mode_too(self, world: World) -> None:
        world.api.state.nodes = [node("gpu-1", ready=False)]
        world.api.state.pods = [pod("old", deletionTimestamp="2026-01-01T00:00:30Z")]
        world.began = epoch("2026-01-01T00:10:00Z")
        seen = world.see(skip_wait_for_delete_timeout=60)
        for told in (world.drain().ask(seen), world.drain().run(seen)):
            assert names(told["left"]) == ["old"] and told["stayed"] == [] and not told["changed"]
            assert "should have ended by 2026-01-01T00:00:30Z" in told["left"][0]["reason"]
            assert told["left"][0]["uses"] == ["nvidia.com/gpu=1"]
        assert world.time.now == 0

    def test_jobs_are_let_end_by_themselves(self, world: World) -> None:
        world.api.state.pods = [pod("a", labels={"job": "x"}), pod("b")]
        world.asleep = lambda now: world.api.state.pods[0]["status"].update(phase="Succeeded") if now > 100 else None
        done = world.run(timeout=300, wait_for_completion="job")
        assert names(done["evicted"]) == ["b"] and names(done["waiting"]) == ["a"] and world.time.now > 100
        assert world.there() == ["a"]

    def test_jobs_that_do_not_are_evicted_after_their_time(self, world: World) -> None:
        world.api.state.pods = [pod("a", labels={"job": "x"})]
        done = world.run(timeout=300, wait_for_completion="job", wait_for_completion_timeout=60)
        assert names(done["evicted"]) == ["a"] and done["changed"] and 60 <= world.time.now < 70

    def test_jobs_without_a_time_are_never_evicted(self, world: World) -> None:
        world.api.state.pods = [pod("a", labels={"job": "x"})]
        failed = world.fails(timeout=60, wait_for_completion="job")
        assert "team/a (is waited for until it completes, for 1 min 0 s)" in failed.found and world.there() == ["a"]

    def test_lines_tell_who_is_waited_for_and_why_and_since_when(self, world: World) -> None:
        world.api.state.pods = [pod("a"), pod("b"), *(pod("c%d" % number) for number in range(7))]
        world.api.state.evictions = {"a": [blocked("web")] * 999, "b": []}
        world.api.state.terminating = {"b", *("c%d" % number for number in range(7))}
        world.fails(timeout=100, progress_interval=30)
        assert len(world.lines) == 3
        assert world.lines[0].startswith("gpu-1: drains for 3")
        assert ", 9 of 9 pods are left: team/a (Cannot evict pod as it would violate the pod's disruption budget. The "\
            "disruption budget web needs 1 healthy pods and has 1 currently, for 3" in world.lines[0]
        assert "team/b (terminating, to have ended by 2026-01-01T00:00:30Z, for 3" in world.lines[0]
        assert world.lines[0].endswith("; and 4 more")
        world.lines.clear()
        world.fails(timeout=100, progress_interval=0)
        assert world.lines == []


class TestDeleting:
    """`disable_eviction`."""

    def test_asks_no_budget(self, world: World) -> None:
        world.api.state.pods = [pod("a")]
        world.api.state.objects[REVIEWS] = {}
        world.api.state.evictions = {"a": [blocked("web")] * 99}
        done = world.run(disable_eviction=True, grace_period=7)
        assert done["changed"] and world.there() == []
        [deletion] = [each for each in world.api.state.requests if each.method == "DELETE"]
        assert deletion.path == PATH and deletion.body["preconditions"] == {"uid": "uid-a"}
        assert deletion.body["gracePeriodSeconds"] == 7 and deletion.body["propagationPolicy"] == "Background"

    def test_needs_the_right_to(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Client, "ask", lambda self, path, body: {"status": {"allowed": False}})
        world.api.state.pods = [pod("a")]
        failed = world.fails(disable_eviction=True)
        assert failed.code == "cluster.rights_missing" and "delete pods" in failed.found and world.there() == ["a"]


class TestAsked:
    """Check mode."""

    def test_the_server_is_asked_of_what_nothing_holds_up(self, world: World) -> None:
        web = {"labels": {"app": "web"}}
        world.api.state.pods = [pod("a", **web), pod("b", **web), pod("c")]
        world.api.state.lists[BUDGETS] = [{
            "metadata": {"namespace": "team", "name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {"disruptionsAllowed": 1, "desiredHealthy": 1, "currentHealthy": 2, "expectedPods": 2}}]
        world.api.state.evictions = {"c": [Answer(400, "a webhook's word")]}
        told = world.see()
        result = world.drain().ask(told)
        assert names(result["evicted"]) == ["a", "b", "c"] and result["changed"] and result["left"] == []
        assert [(each["pod"], each["reason"][:20]) for each in result["blocked"]] == [
            ("team/b", "disruption budget we"), ("team/c", "a webhook's word")]
        posts = [each for each in world.api.state.requests if each.method == "POST"]
        assert [each.path.split("/")[-2] for each in posts] == ["a", "c"]
        assert all(each.query == {"dryRun": "All"} for each in posts) and len(world.there()) == 3

    def test_what_stands_against_a_node_beside_it_stands_against_both(self, world: World) -> None:
        """Each is drained as its own options say; and who drains one of them evicts none of the other's."""
        world.api.state.pods = [pod("a"), pod("bare", owner=None, node_name="gpu-2")]
        beside = {"gpu-2": policy_of({})}
        for dry_run in (True, False):
            with pytest.raises(GpuOpsError) as refused:
                NodeDrain(world.client, "gpu-1", policy_of({"force": True})).go(dry_run, beside=beside)
            assert refused.value.code == "cluster.pods_without_controller" and "team/bare" in refused.value.found
            assert "of nodes gpu-1, gpu-2, which are drained at the same time" in refused.value.found
        beside = {"gpu-2": policy_of({"force": True})}
        assert names(NodeDrain(world.client, "gpu-1", policy_of({})).go(True, beside=beside)["evicted"]) == ["a"]
        assert names(NodeDrain(world.client, "gpu-1", policy_of({})).go(False, beside=beside)["evicted"]) == ["a"]
        assert world.there() == ["bare"]

    def test_what_a_budget_allows_is_added_up_over_the_nodes_beside_it(self, world: World) -> None:
        web = {"labels": {"app": "web"}}
        world.api.state.pods = [pod("a", **web), pod("b", node_name="gpu-2", **web)]
        world.api.state.lists[BUDGETS] = [{
            "metadata": {"namespace": "team", "name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {"disruptionsAllowed": 1, "desiredHealthy": 1, "currentHealthy": 2, "expectedPods": 2}}]
        told = NodeDrain(world.client, "gpu-1", policy_of({})).go(True, beside={"gpu-2": policy_of({})})
        assert [(each["now"], each["later"]) for each in told["budgets"]] == [(["team/a"], ["team/b"])]

    def test_nobody_is_asked_where_eviction_is_disabled(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Client, "ask", lambda self, path, body: {"status": {"allowed": True}})
        world.api.state.pods = [pod("a")]
        seen = world.see(disable_eviction=True)
        assert world.drain().ask(seen)["changed"] and world.asked() == world.asked("DELETE") == 0


class TestLookedAt:
    def test_claims_are_read_of_the_version_that_is_served(self, world: World) -> None:
        made = pod("a", gpus=0)
        made["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimName": "claim"}]
        world.api.state.pods = [made, pod("b", gpus=0)]
        world.api.state.objects["/apis/resource.k8s.io/v1beta1/namespaces/team/resourceclaims/claim"] = {"status": {
            "reservedFor": [{"resource": "pods", "name": "a", "uid": "uid-a"}],
            "allocation": {"devices": {"results": [
                {"driver": "gpu.nvidia.com", "pool": "gpu-1", "device": "gpu-0"}]}}}}
        done = world.run()
        assert names(done["evicted"]) == ["a"] and done["evicted"][0]["uses"] == [
            "ResourceClaim claim: gpu.nvidia.com/gpu-1/gpu-0"]

    def test_an_orphan_of_a_daemonset_is_found_by_its_uid(self, world: World) -> None:
        orphan = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "x", "uid": "uid-old", "controller": True}]
        world.api.state.pods = [pod("a", ownerReferences=orphan)]
        world.api.state.lists["/apis/apps/v1/daemonsets"] = [
            {"metadata": {"namespace": "team", "name": "x", "uid": "uid-new"}}]
        assert world.fails().code == "cluster.pods_of_absent_daemonset"
        world.api.state.pods[0]["metadata"]["ownerReferences"][0]["uid"] = "uid-new"
        assert names(world.run()["stayed"]) == ["a"]

    def orphan(self) -> Dict[str, Any]:
        return pod("agent", labels={"app": "agent"}, ownerReferences=[
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "gone", "uid": "u", "controller": True}])

    @pytest.mark.parametrize("others", [0, 1])
    def test_an_orphan_of_a_daemonset_goes_with_its_namespace_whoever_else_is_there(
        self, world: World, others: int
    ) -> None:
        """The namespace's end took its DaemonSet first."""
        world.api.state.pods = [self.orphan()] + [pod("job")] * others
        world.api.state.lists["/api/v1/namespaces"] = [
            {"metadata": {"name": "team", "deletionTimestamp": "2026-01-01T00:00:00Z"}}]
        seen = world.see()
        assert seen.refusals == () and len(seen.of("gpu-1", WAITS)) == 1 + others

    @pytest.mark.parametrize("others", [0, 1])
    def test_an_orphan_of_a_daemonset_has_budgets_whoever_else_is_there(self, world: World, others: int) -> None:
        world.api.state.pods = [self.orphan()] + [pod("job")] * others
        world.api.state.lists[BUDGETS] = [{
            "metadata": {"namespace": "team", "name": name}, "spec": {"selector": {"matchLabels": {"app": "agent"}}},
            "status": {"disruptionsAllowed": 1, "expectedPods": 2}} for name in ("one", "two")]
        assert [each.code for each in world.see(force=True).refusals] == ["cluster.pods_of_several_budgets"]

    def test_pods_that_come_again_at_once_cost_no_look_at_what_lets_pods_go(self, world: World) -> None:
        world.api.state.pods = [pod("agent", ownerReferences=[
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "x", "uid": "u", "controller": True}])]
        world.api.state.lists["/apis/apps/v1/daemonsets"] = [
            {"metadata": {"namespace": "team", "name": "x", "uid": "u"}}]
        assert names(world.run()["stayed"]) == ["agent"]
        asked = {each.path for each in world.api.state.requests}
        assert asked.isdisjoint({"/api/v1/namespaces", BUDGETS})


class TestBudgetsOfWhatIsThere:
    """The control plane expects the pods that there are, or those that their controllers want, and one of them that is
    being replaced is not."""

    def counted(self, expected: int, failed: bool = False, **spec: Any) -> Dict[str, Any]:
        conditions = [{"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed"}] if failed else []
        return {"metadata": {"namespace": "team", "name": "web"},
                "spec": {"selector": {"matchLabels": {"app": "web"}}, **(spec or {"minAvailable": 3})},
                "status": {"disruptionsAllowed": 0, "expectedPods": expected, "desiredHealthy": 3,
                           "currentHealthy": 3, "conditions": conditions}}

    @pytest.mark.parametrize("spec", [
        {"minAvailable": 3}, {"minAvailable": "50%"}, {"maxUnavailable": 1}, {"failed": True, "maxUnavailable": 1}])
    def test_one_is_not_judged_by_the_moment_in_which_a_pod_is_replaced(
        self, world: World, spec: Dict[str, Any]
    ) -> None:
        world.api.state.pods = [pod("a", labels={"app": "web"})]
        world.api.state.lists[BUDGETS] = [self.counted(3, **spec)]
        world.asleep = lambda now: world.api.state.lists.update({BUDGETS: [self.counted(4)]})
        assert world.see().refusals == () and world.time.now == 5

    def test_what_it_says_twice_is_refused(self, world: World) -> None:
        world.api.state.pods = [pod("a", labels={"app": "web"})]
        world.api.state.lists[BUDGETS] = [self.counted(3)]
        [refusal] = world.see().refusals
        assert refusal.code == "cluster.budget_never_allows" and world.time.now == 5
        assert "web lets no pod go even while all of them are healthy: it needs 3 healthy pods of 3" in refusal.found

    def test_a_drain_that_is_refused_anyway_is_at_once(self, world: World) -> None:
        world.api.state.pods = [pod("a", labels={"app": "web"}, owner=None)]
        world.api.state.lists[BUDGETS] = [self.counted(3)]
        assert "cluster.budget_never_allows" in [each.code for each in world.see().refusals]
        assert world.time.now == 0
