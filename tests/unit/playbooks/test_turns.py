# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""site where hosts have no turn, or lose it: each is named with its reason, and no other one is changed for it."""
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Mapping

import pytest
from canned import Hosts, planned
from cluster_objects import pod
from sites import CHANGE, MODULE, NOTHING, SMALL, Site, freeze, names

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan

OF_CLIQUE = {**CHANGE, "change": {**CHANGE["change"], "clique": "c.1"}}
BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
NEVER_ALLOWS = {
    "metadata": {"name": "web", "namespace": "team", "generation": 1},
    "spec": {"selector": {"matchLabels": {"app": "web"}}},
    "status": {"observedGeneration": 1, "expectedPods": 1, "desiredHealthy": 1, "currentHealthy": 1}}
UNPREPARED = {"failed": True, "changed": False, "msg": "no such kernel headers"}
# The first host that asks for a place
NOT_ANSWERED = '''
class ActionModule(Real):
    def answer(self, task_vars):
        if self._task.args.get("state") == "start":
            try:
                (pathlib.Path(task_vars["inventory_dir"]) / "was-asked").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                raise GpuOpsError("cluster.no_answer", "the Kubernetes API server does not answer", "an answer", "x")
        return super().answer(task_vars)
'''
NOT_KEPT = '''
class ActionModule(Real):
    def answer(self, task_vars):
        if self._task.args.get("failures"):
            raise GpuOpsError("cluster.no_answer", "it was not kept", "an answer", "x")
        return super().answer(task_vars)
'''
CHECKS = [{"ansible.builtin.fail": {"msg": "4 GB/s"}, "when": "gpu_validation_host is defined"}]


@pytest.fixture
def checks(tmp_path: Path) -> str:
    """A file of the user's checks, which fail after the change."""
    path = tmp_path / "checks.yml"
    path.write_text(json.dumps(CHECKS))
    return str(path)


def test_who_may_not_be_changed_is_named_and_the_others_are(in_words: Hosts) -> None:
    site = Site(in_words, names(3), gpu_2={"unschedulable": True})
    done = site.run({"gpu-3": {"gpu_plan": NOTHING}, **{name: {"gpu_plan": CHANGE} for name in names(2)}},
                    gpu_rollout_limit=2)
    assert done.returncode == 2 and site.changed() == ["gpu-1"]
    assert "node gpu-2 was taken out of service by" in done.stdout and "[rollout.cordoned_by_others]" in done.stdout


@pytest.mark.parametrize("limit, code", [
    ("0", "rollout.limit_malformed"),
    pytest.param("{{ 2 if inventory_hostname == 'gpu-1' else '5%' }}", "cluster.", marks=pytest.mark.variation)])
def test_a_policy_that_is_none_stops_before_anything_is_prepared(in_words: Hosts, limit: str, code: str) -> None:
    site = Site(in_words, names(2))
    done = site.run({"gpu_plan": CHANGE}, gpu_rollout_limit=limit)
    assert done.returncode == 2 and "gpu_rollout_limit" in done.stdout and "[" + code in done.stdout, done.stdout
    assert not any(in_words.calls("gpu_driver", name) for name in names(2))


@pytest.mark.variation
def test_the_plan_names_who_would_not_be_changed(in_words: Hosts) -> None:
    site = Site(in_words, names(2), gpu_2={"unschedulable": True})
    done = site.run({"gpu_plan": CHANGE}, playbook="plan", tags=(), gpu_plan_dir="my plans")
    assert done.returncode == 2 and "[rollout.cordoned_by_others]" in done.stdout
    assert """-e '{"gpu_plan_dir": "my plans"}' -e gpu_approved_fleet=""" in done.stdout + done.stderr


def test_what_has_become_more_in_no_cluster_had_nothing_to_wait_for_but_its_window(in_words: Hosts) -> None:
    site = Site(in_words, names(2))
    plans = {"gpu-1": {"gpu_plan": [SMALL, CHANGE]}, "gpu-2": {"gpu_plan": [SMALL, SMALL]}}
    done = site.run(plans, cluster=False)
    assert done.returncode == 0 and site.changed() == names(2), done.stdout
    site = Site(in_words, ["gpu-3"])
    done = site.run({"gpu_plan": [SMALL, CHANGE]}, cluster=False, gpu_rollout_freezes=[freeze()])
    assert done.returncode == 2 and site.changed() == [], done.stdout
    assert "which waited for no window. Do:" in " ".join(done.stdout.split()), done.stdout


@pytest.mark.variation
def test_hosts_of_no_cluster_keep_windows_and_order(in_words: Hosts) -> None:
    site = Site(in_words, names(2))
    done = site.run({"gpu_plan": CHANGE}, cluster=False, gpu_rollout_freezes=[freeze()])
    assert site.changed() == [] and "year's end" in done.stdout, done.stdout
    done = site.run({"gpu_plan": CHANGE}, cluster=False)
    assert done.returncode == 0, done.stdout
    (canary,) = [line.split()[1].rstrip(":") for line in done.stderr.splitlines() + done.stdout.splitlines()
                 if "canary of" in line]
    begun = [line.split(":")[0] for line in done.stderr.splitlines() + done.stdout.splitlines()
             if line.startswith("gpu-") and "its change begins" in line]
    assert begun[0] == canary and set(begun) == set(names(2))


@pytest.mark.variation
def test_hosts_where_nothing_is_to_be_done_are_not_lost_and_one_that_is_not_answered_neither(in_words: Hosts) -> None:
    """With more hosts than forks, as every fleet has."""
    in_words.around("gpu_rollout", NOT_ANSWERED)
    site = Site(in_words, names(6))
    done = site.run({**{name: {"gpu_plan": NOTHING} for name in names(3)},
                     **{name: {"gpu_plan": CHANGE} for name in names(6)[3:]}}, "--forks", "2",
                    gpu_rollout_canaries="none", gpu_rollout_timeout=120)
    assert done.returncode == 2 and len(site.changed()) == 2 and site.record().slots == {}, done.stdout
    (told,) = re.findall("^fatal: .+", done.stdout, re.MULTILINE)
    assert "[cluster.no_answer]" in told and not any(name in told for name in site.changed())


def test_so_many_that_could_not_be_reached_are_the_network(in_words: Hosts) -> None:
    """When they are planned, or prepared."""
    site = Site(in_words, names(5))
    gone = {"unreachable": True, "changed": False, "msg": "no route to host"}
    done = site.run({**{name: {"gpu_plan": CHANGE} for name in names(5)}, "gpu-1": {"gpu_plan": gone},
                     "gpu-2": {"gpu_plan": CHANGE, "gpu_driver": gone}})
    assert site.changed() == [] and "[rollout.too_many_unreachable]" in done.stdout, done.stdout


@pytest.mark.parametrize("labels", [{}, pytest.param({"nvidia.com/gpu.clique": "c.1"}, marks=pytest.mark.variation)])
def test_a_clique_of_which_one_cannot_be_prepared_is_left_whole(in_words: Hosts, labels: Mapping[str, str]) -> None:
    site = Site(in_words, names(3), gpu_1={"labels": labels}, gpu_2={"labels": labels})
    done = site.run({"gpu-1": {"gpu_plan": OF_CLIQUE}, "gpu-2": {"gpu_plan": OF_CLIQUE, "gpu_driver": UNPREPARED},
                     "gpu-3": {"gpu_plan": NOTHING}}, gpu_rollout_limit=3)
    assert done.returncode == 2 and site.changed() == []
    assert "[rollout.unit_incomplete]" in done.stdout, done.stdout


@pytest.mark.variation
def test_a_clique_whose_second_node_s_budget_cannot_be_met_is_left_whole(in_words: Hosts) -> None:
    """No node of it is cordoned, whichever host asks first. That the pod has a GPU only its own host has seen."""
    site = Site(in_words, names(3))
    in_words.api.state.pods = [pod("a"), pod("b", gpus=0, node_name="gpu-2", labels={"app": "web"})]
    in_words.api.state.lists[BUDGETS] = [NEVER_ALLOWS]
    done = site.run({"gpu-1": {"gpu_plan": OF_CLIQUE}, "gpu-2": {"gpu_plan": {**OF_CLIQUE, "holders": ["team/b"]}},
                     "gpu-3": {"gpu_plan": CHANGE}}, gpu_rollout_limit=3, gpu_rollout_canaries="none")
    assert done.returncode == 2 and site.changed() == ["gpu-3"] and site.held() == {}, done.stdout
    assert "[cluster.budget_never_allows]" in done.stdout and "nodes gpu-1, gpu-2, which are" in done.stdout
    assert {path for method, path in in_words.writes() if path.startswith("/api/v1/nodes/")} == {"/api/v1/nodes/gpu-3"}
    assert {each["metadata"]["name"] for each in in_words.api.state.pods} == {"a", "b"}


def test_a_failure_is_not_forgotten_and_checks_of_the_user_s_roll_back(in_words: Hosts, checks: str) -> None:
    """The canary fails its check. Done again, nothing is to be done there: it stays out of service until a person has
    said that it was looked at, and stops the others."""
    site = Site(in_words, names(3))
    first = site.run({"gpu_plan": dict(CHANGE, returns_to={"version": "570.1", "how": "archive", "why": ""})},
                     "--forks", "1", gpu_rollout_checks=checks, gpu_rollout_limit=3)
    (failed,) = site.changed()
    assert "Rolled back to driver 570.1" in first.stdout or "could not be rolled back" in first.stdout, first.stdout
    _before, _name, at_the_end = first.stdout.partition("PLAY [Say what waits for somebody]")
    assert re.search(r"The change of %s has failed \(.+\): 4 GB/s\. It keeps" % failed, at_the_end), first.stdout
    assert re.search(r"4 GB/s\. .*olled back.*\. When it was looked at: ansible ", first.stdout), first.stdout
    assert "-m gpuops.nvidia.gpu_rollout -a" in at_the_end and site.held()[failed] == "failed"
    canned = {failed: {"gpu_plan": NOTHING}, **{name: {"gpu_plan": CHANGE} for name in names(3) if name != failed}}
    again = site.run(canned, gpu_rollout_limit=3)
    assert again.returncode == 2 and site.changed() == [failed] and site.cordoned() == [failed]
    assert "[rollout.failed_before]" in again.stdout and site.held() == {failed: "failed"}
    (typed,) = set(re.findall("To free it: ansible localhost -m (.+?) -a '(.+?)'", again.stdout))
    assert typed[0] == MODULE and set(typed[1].split()) == {
        "state=ended", "outcome=freed", "name=" + failed, "kubeconfig=%s" % in_words.api.kubeconfig}
    told = site.tell(state="ended", name="gpu-l", outcome="freed")
    assert failed in told["warnings"][0] and not told["changed"]
    assert site.tell(state="ended", name=failed, outcome="freed")["changed"]
    # Its own place is one of those that the others need
    assert site.run(canned, gpu_rollout_limit=1, gpu_rollout_timeout=120).returncode == 0
    assert site.cordoned() == [] and site.changed() == names(3)


@pytest.mark.variation
def test_a_failure_is_written_down_though_its_node_cannot_be_kept(in_words: Hosts) -> None:
    in_words.around("gpu_node_custody", NOT_KEPT)
    site = Site(in_words, names(1))
    done = site.run({"gpu_plan": CHANGE, "gpu_validation": {"failed": True, "changed": False, "msg": "it fell off"}})
    pool = site.record()
    assert done.returncode == 2 and "it fell off" in done.stdout and "not kept" in done.stdout, done.stdout
    assert pool.slots["gpu-1"].reason == "it fell off" and pool.slots["gpu-1"].state == "failed"
    assert pool.rollout is None and "-m gpuops.nvidia.gpu_rollout -a" in done.stdout


@pytest.mark.variation
def test_a_host_without_gpus_brings_no_order_of_before(in_words: Hosts) -> None:
    site = Site(in_words, ["cpu-0", *names(3)])
    done = site.run({"cpu-0": {"gpu_plan": planned(Plan(), gpus=0)}, "gpu-1": {"gpu_plan": CHANGE},
                     "gpu-2": {"gpu_plan": CHANGE, "gpu_driver": UNPREPARED}, "gpu-3": {"gpu_plan": CHANGE}},
                    gpu_rollout_timeout=120)
    assert done.returncode == 2 and site.changed() == ["gpu-1", "gpu-3"], done.stdout


@pytest.mark.variation
def test_a_run_all_of_whose_hosts_fail_closes_its_rollout(in_words: Hosts, checks: str) -> None:
    site = Site(in_words, names(2))
    assert site.run({"gpu_plan": CHANGE}, "--limit", "gpu-1", gpu_rollout_checks=checks).returncode == 2
    other = {**CHANGE, "change": {**CHANGE["change"], "policy": "another"}}
    done = site.run({"gpu_plan": other}, "--limit", "gpu-2", gpu_rollout_limit=2)
    assert done.returncode == 0 and site.changed() == names(2), done.stdout
