# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What site makes of a plan for MIG: who leaves the node, what is put off, and what the Node says of its layout."""
from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any, Dict, Mapping, Sequence

import pytest
from canned import Hosts, planned
from cluster_objects import node, pod
from controller import VARIABLES, Controller
from sites import DRIVER, SMALL, Site, freeze, names

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Requirement, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.budget import DEFAULT_POOL, Pool, Slot

LAYOUT, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
MODE = Step("mig", "mig.mode", "0000:17:00.0", "GPU 0 is to be divided.", Disruption.reboot)
PACKAGES = Step("driver", "packages.install", "driver 580", "Driver 580.")
BOOT = Requirement("mig", "reboot", "0000:17:00.0", "GPU 0 cannot be reset.", Disruption.reboot)
WITH_BOOT = Plan(host="gpu-1", steps=(MODE,), requirements=(BOOT,))


class TestAReboot:
    @staticmethod
    def told(in_words: Hosts, allowed: Disruption) -> str:
        in_words.api.state.nodes = [node("gpu-1", labels={LAYOUT: "all-balanced"})]
        in_words.api.state.pods = [pod("trainer")]
        return in_words.site(
            {"gpu_plan": planned(WITH_BOOT, allowed),
             "mig": {"changed": True, "reboot_required": True, "plan": WITH_BOOT.to_dict()}},
            gpu_mig_labels=True, gpu_allowed_disruption=allowed.name)

    @pytest.mark.variation
    def test_that_is_allowed_is_done(self, in_words: Hosts) -> None:
        told = self.told(in_words, Disruption.reboot)
        assert "reboot with local connection would reboot the control node" in told, told
        assert not in_words.api.state.pods and in_words.label(STATE) == "failed"

    def test_that_is_not_allowed_drains_nothing_and_is_told(self, in_words: Hosts) -> None:
        told = self.told(in_words, Disruption.driver_reload)
        assert "Put off, as gpu_allowed_disruption says: mig/mig.mode/0000:17:00.0 (reboot: " in told, told
        assert "would reboot" not in told and "failed=0" in told
        assert in_words.api.state.pods and in_words.label(STATE) == "pending"


class TestPodsThatLeave:
    @pytest.mark.variation
    def test_those_past_the_scheduler_leave_too_and_others_stay(self, in_words: Hosts) -> None:
        """Those that the host names have GPUs, whatever they ask for: mig would refuse a busy GPU."""
        mode = replace(MODE, disruption=Disruption.gpu_reset)
        ours = pod("plugin", gpus=0, owner="DaemonSet")
        ours["metadata"]["labels"] = {"app.kubernetes.io/part-of": "gpuops"}
        names = ("team/trainer", "team/monitor", "team/plugin", "team/gone", "team/done")
        plan = Plan(host="gpu-1", steps=(mode,), leaving={mode.id: names})
        in_words.api.state.nodes = [node("gpu-1")]
        in_words.api.state.pods = [pod("trainer"), pod("monitor", gpus=0), pod("idle", gpus=0), ours,
                                   pod("done", gpus=0, phase="Succeeded")]
        in_words.site({"gpu_plan": planned(plan)})
        assert [each["metadata"]["name"] for each in in_words.api.state.pods] == ["idle", "plugin", "done"]

    def test_those_that_the_host_has_seen_leave_with_all_others(self, in_words: Hosts) -> None:
        plan = Plan(host="gpu-1", steps=(replace(PACKAGES, disruption=Disruption.driver_reload),))
        in_words.api.state.nodes = [node("gpu-1")]
        in_words.api.state.pods = [pod("trainer"), pod("by-runtime-class", gpus=0), pod("idle", gpus=0)]
        in_words.site({"gpu_plan": planned(plan, holders=["team/by-runtime-class"])})
        assert [each["metadata"]["name"] for each in in_words.api.state.pods] == ["idle"]

    def test_one_that_never_leaves_is_told_before_anybody_does(self, in_words: Hosts) -> None:
        """The others were evicted, then mig refused a busy GPU, and the node stayed cordoned."""
        mode = replace(MODE, disruption=Disruption.gpu_reset)
        plan = Plan(host="gpu-1", steps=(mode,), leaving={mode.id: ("team/trainer", "team/agent")})
        in_words.api.state.nodes = [node("gpu-1")]
        in_words.api.state.pods = [pod("trainer"), pod("agent", gpus=0, owner="DaemonSet")]
        told = in_words.site({"gpu_plan": planned(plan)})
        assert "1 pod(s) with GPUs that no drain takes away: team/agent, which belongs to DaemonSet/" in told, told
        assert [(method, path) for method, path in in_words.writes() if "/pods/" in path] == [
            ("POST", "/api/v1/namespaces/team/pods/trainer/eviction")], "asked, in check mode"
        assert "unschedulable" not in in_words.api.state.nodes[0]["spec"]
        assert len(in_words.api.state.pods) == 2 and in_words.calls("mig") == 0


class TestWhatTheNodeSays:
    """nvidia.com/mig.config.state was 'success', of the layout before."""

    STALE = {LAYOUT: "all-balanced", STATE: "success"}

    @pytest.fixture
    def labelled(self, in_words: Hosts) -> Hosts:
        ours = {"gpuops.nvidia.com/labels": json.dumps({STATE: "success"})}
        in_words.api.state.nodes = [node("gpu-1", labels=self.STALE, annotations=ours)]
        return in_words

    @pytest.mark.parametrize("plan", [
        Plan(refusals=(Refusal("mig.config_unknown", "no such layout", "one", "correct it"),)),
        Plan(steps=(replace(MODE, disruption=Disruption.runtime_restart),), requirements=(BOOT,)),
    ])
    def test_a_plan_that_is_refused(self, labelled: Hosts, plan: Plan) -> None:
        told = labelled.site({"gpu_plan": planned(plan)}, gpu_mig_labels=True)
        assert "failed=1" in told and labelled.label(STATE) == "failed", told

    def test_pods_that_cannot_leave(self, labelled: Hosts) -> None:
        plan = Plan(steps=(replace(MODE, disruption=Disruption.gpu_reset),), leaving={MODE.id: ("team/bare",)})
        labelled.api.state.pods = [pod("bare", owner=None)]
        told = labelled.site({"gpu_plan": planned(plan)}, gpu_mig_labels=True)
        assert "pods that no controller starts again" in told and labelled.label(STATE) == "failed", told

    @pytest.mark.variation
    def test_what_is_put_off_once_the_driver_has_told(self, labelled: Hosts) -> None:
        first = Plan(steps=(PACKAGES,), waiting=("mig",), complete=False)
        told = labelled.site({"gpu_plan": [*[planned(first)] * 2, planned(WITH_BOOT)]}, gpu_mig_labels=True)
        assert "Put off, as gpu_allowed_disruption says: mig/mig.mode/0000:17:00.0 (reboot: " in told, told
        assert labelled.label(STATE) == "pending" and "failed=0" in told

    @pytest.mark.variation
    def test_it_rests_while_other_labels_are_purged(self, labelled: Hosts) -> None:
        def writes() -> int:
            labelled.site({"gpu_plan": planned(Plan())}, gpu_mig_labels=True, node_maintenance_purge_labels=True)
            return len(labelled.writes())

        assert writes() == writes() and labelled.label(STATE) == "success"

    def test_a_node_without_the_label_says_nothing(self, labelled: Hosts) -> None:
        labelled.api.state.nodes = [node("gpu-1")]
        labelled.site({"gpu_plan": planned(Plan())}, gpu_mig_labels=True, mig_label="all-balanced")
        assert labelled.label(STATE) is None


def first(allowed: Disruption = Disruption.driver_reload) -> Dict[str, Any]:
    """A driver is to be loaded, which takes nobody's work away, before it is known how its GPUs can be divided."""
    return planned(Plan(steps=(PACKAGES,), waiting=("mig",), complete=False, may_come=(
        Disruption.runtime_restart, Disruption.gpu_reset, Disruption.reboot)), allowed)


class TestWhatOnlyTheDriverTells:
    SEEN = {"capacity": {"nvidia.com/gpu": "0"}}
    JOINS = {"taints": [{"key": "example.com/new", "effect": "NoSchedule"}]}

    @pytest.mark.parametrize("there, allowed, is_taken", [
        (SEEN, Disruption.driver_reload, True), (SEEN, Disruption.service_restart, True),
        ({}, Disruption.driver_reload, False), ({}, Disruption.reboot, True),
        pytest.param({**JOINS, **SEEN}, Disruption.reboot, False, marks=pytest.mark.variation),
        pytest.param(JOINS, Disruption.reboot, False, marks=pytest.mark.variation),
    ])
    def test_is_done_in_the_same_run_and_nobody_is_at_work_there_then(
        self, in_words: Hosts, there: Mapping[str, Any], allowed: Disruption, is_taken: bool
    ) -> None:
        in_words.api.state.nodes = [node("gpu-1", labels={LAYOUT: "all-balanced"}, **there)]
        in_words.api.state.pods = [pod("trainer")]
        rest = planned(Plan(host="gpu-1", steps=(replace(MODE, disruption=allowed),)), allowed)
        told = in_words.site({"gpu_plan": [first(allowed), first(allowed), rest]}, gpu_mig_labels=True,
                             gpu_allowed_disruption=allowed.name, gpu_startup_taint="example.com/new")
        assert "failed=0" in told and in_words.calls("gpu_plan") == 3 and in_words.calls("mig") == 2, told
        assert in_words.label(STATE) == "success" and (in_words.api.state.pods == []) == is_taken, told
        assert "unschedulable" not in in_words.api.state.nodes[0]["spec"], told

    @pytest.mark.variation
    def test_what_waits_still_once_the_driver_has_been_asked_is_pending(self, in_words: Hosts) -> None:
        in_words.api.state.nodes = [node("gpu-1", labels={LAYOUT: "all-balanced"})]
        told = in_words.site({"gpu_plan": [first(), first(), first()]}, gpu_mig_labels=True)
        assert "failed=0" in told and in_words.label(STATE) == "pending", told

    @pytest.mark.variation
    def test_a_part_of_it_that_is_put_off_keeps_nobody_from_the_rest(self, in_words: Hosts) -> None:
        in_words.api.state.nodes = [node("gpu-1", labels={LAYOUT: "all-balanced"})]
        rest = planned(replace(WITH_BOOT, steps=(replace(MODE, disruption=Disruption.gpu_reset),)))
        assert rest["drain"] == "node" and rest["deferred"]
        told = in_words.site({"gpu_plan": [first(), first(), rest]}, gpu_mig_labels=True)
        assert "failed=0" in told and in_words.calls("mig") == 2 and in_words.label(STATE) == "pending", told

    def test_a_node_that_a_dead_run_had_begun_with_is_taken_as_any_other(self, in_words: Hosts, now: datetime) -> None:
        """Its place alone drains nobody."""
        site = Site(in_words, names(1))
        site.record(lambda record: record.but(DEFAULT_POOL, Pool("1", slots={"gpu-1": Slot("gpu-1", "a@other", now)})))
        in_words.api.state.pods = [pod("trainer")]
        rest = planned(Plan(host="gpu-1", steps=(replace(MODE, disruption=Disruption.gpu_reset),)))
        done = site.run({"gpu_plan": [first(), first(), rest]})
        assert done.returncode == 0 and in_words.calls("mig") == 2 and in_words.api.state.pods == [], done.stdout
        assert site.held() == {} and site.cordoned() == []

    @pytest.mark.parametrize("there", [SEEN, pytest.param({}, marks=pytest.mark.variation)])
    def test_what_nothing_had_foretold_waits_for_a_turn_of_its_own(
        self, in_words: Hosts, there: Mapping[str, Any]
    ) -> None:
        site = Site(in_words, names(1))
        in_words.api.state.nodes = [node("gpu-1", labels={LAYOUT: "all-balanced"}, **there)]
        in_words.api.state.pods = [pod("trainer")]
        unforetold = {**first(), "may_disturb": "none"}
        divides = replace(MODE, disruption=Disruption.none)
        rest = planned(Plan(host="gpu-1", steps=(divides,), leaving={MODE.id: ("team/trainer",)}))
        done = site.run({"gpu_plan": [unforetold, unforetold, rest]}, gpu_mig_labels=True)
        told = " ".join(done.stdout.split())
        assert done.returncode == 0 and in_words.calls("mig") == (1 if there else 2), told
        left = "Left to the next run, which takes the node out of service for it: mig (steps of class none)."
        assert (left in told) == bool(there), told
        assert in_words.label(STATE) == ("pending" if there else "success"), told
        assert in_words.api.state.pods != [] and site.cordoned() == [] and site.held() == {}, told

    def test_what_is_refused_of_it_is_told_and_not_left(self, in_words: Hosts) -> None:
        site = Site(in_words, names(1))
        in_words.api.state.nodes = [node("gpu-1", labels={LAYOUT: "all-balanced"}, **self.SEEN)]
        unforetold = {**first(), "may_disturb": "none"}
        refused = planned(Plan(host="gpu-1", steps=(replace(MODE, disruption=Disruption.gpu_reset),),
                               refusals=(Refusal("mig.config_unknown", "all-odd", "a layout", "name one"),)))
        done = site.run({"gpu_plan": [unforetold, unforetold, refused]}, gpu_mig_labels=True)
        told = " ".join(done.stdout.split())
        assert done.returncode == 2 and "[mig.config_unknown]" in told and "Left to the next run" not in told, told
        assert in_words.label(STATE) == "failed", told

    def test_another_part_that_is_left_says_nothing_of_the_layout(self, in_words: Hosts) -> None:
        site = Site(in_words, names(1))
        in_words.api.state.nodes = [node("gpu-1", labels={LAYOUT: "all-balanced"}, **self.SEEN)]
        unforetold = {**first(), "may_disturb": "none"}
        ecc = Step("settings", "settings.change_ecc", "0000:17:00.0", "ECC changes.", Disruption.gpu_reset)
        done = site.run({"gpu_plan": [unforetold, unforetold, planned(Plan(host="gpu-1", steps=(ecc,)))]},
                        gpu_mig_labels=True)
        told = " ".join(done.stdout.split())
        assert done.returncode == 0 and "for it: settings (steps of class gpu_reset)" in told, told
        assert in_words.label(STATE) == "success", told

    def test_what_an_approved_plan_leaves_is_left_to_the_next_one(self, in_words: Hosts) -> None:
        site = Site(in_words, names(1))
        in_words.api.state.nodes = [node("gpu-1", labels={LAYOUT: "all-balanced"}, **self.SEEN)]
        approved = {**first(), "may_disturb": "none"}
        rest = planned(Plan(host="gpu-1", steps=(replace(MODE, disruption=Disruption.gpu_reset),)))
        done = site.run({"gpu_plan": [approved, approved, rest]}, gpu_mig_labels=True, gpu_plan_dir="plans")
        told = " ".join(done.stdout.split())
        assert done.returncode == 0 and in_words.calls("mig") == 1, told
        assert "Left to the next plan, as" in told and "Left to the next run" not in told, told
        assert in_words.label(STATE) == "pending" and site.held() == {}, told

    def test_what_is_put_off_of_it_is_not_said_to_come_with_the_next_run(self, in_words: Hosts) -> None:
        site = Site(in_words, names(1))
        in_words.api.state.nodes = [node("gpu-1", **self.SEEN)]
        unforetold = {**first(), "may_disturb": "none"}
        ecc = Step("settings", "settings.change_ecc", "0000:17:00.0", "ECC changes.", Disruption.gpu_reset)
        done = site.run({"gpu_plan": [unforetold, unforetold, planned(replace(WITH_BOOT, steps=(ecc, MODE)))]})
        assert "for it: settings (steps of class gpu_reset)" in " ".join(done.stdout.split()), done.stdout

    def test_gpus_whose_driver_is_loaded_are_left_first(self, in_words: Hosts) -> None:
        """Only its libraries are to come, and whoever is past the scheduler may be at work."""
        site = Site(in_words, names(1))
        in_words.api.state.nodes = [node("gpu-1")]
        in_words.api.state.pods = [pod("trainer")]
        rest = planned(Plan(host="gpu-1", steps=(replace(MODE, disruption=Disruption.gpu_reset),)))
        there = {**first(), "driver_loaded": "580.178.04"}
        done = site.run({"gpu_plan": [there, there, rest]})
        assert done.returncode == 0 and in_words.calls("mig") == 2 and in_words.api.state.pods == [], done.stdout

    @pytest.mark.parametrize("may_come", [(), (Disruption.gpu_reset,)], ids=["unforetold", "foretold"])
    def test_in_no_cluster_they_wait_for_their_window(
        self, in_words: Hosts, may_come: Sequence[Disruption]
    ) -> None:
        site = Site(in_words, names(1))
        ecc = Step("settings", "settings.change_ecc", "0000:17:00.0", "ECC changes.", Disruption.gpu_reset)
        libraries = planned(Plan(steps=(PACKAGES,), waiting=("settings",), complete=False, may_come=tuple(may_come)),
                            driver_loaded="580.178.04")
        done = site.run({"gpu_plan": [libraries, libraries, planned(Plan(steps=(ecc,)))]}, cluster=False,
                        gpu_rollout_freezes=[freeze()])
        told = " ".join(done.stdout.split())
        assert in_words.calls("gpu_settings") == (0 if may_come else 1), told
        assert may_come or "Left to the next run, which waits for its window for it: settings (steps" in told, told

    def test_the_higher_of_what_is_done_and_what_may_be_is_named(self, in_words: Hosts) -> None:
        site = Site(in_words, names(1))
        upgrade = planned(Plan(steps=(DRIVER,), waiting=("mig",), complete=False, may_come=(Disruption.gpu_reset,)))
        done = site.run({"gpu_plan": [SMALL, upgrade]})
        assert "steps of class driver_reload are to be done" in " ".join(done.stdout.split()), done.stdout

    def test_pods_that_no_drain_takes_away_are_refused_before_the_node_is_taken(self, in_words: Hosts) -> None:
        site = Site(in_words, names(1))
        stays = pod("monitor")
        stays["metadata"]["labels"] = {"nvidia.com/gpu-driver-upgrade-drain.skip": "true"}
        in_words.api.state.pods = [stays]
        done = site.run({"gpu_plan": first()})
        told = " ".join(done.stdout.split())
        assert done.returncode == 2 and "before a change of class gpu_reset" in told, told
        assert "[playbook.pods_that_stay]" in told and in_words.calls("mig") == 0 and site.held() == {}, told

    def test_what_comes_to_wait_for_it_since_it_was_planned_is_left_to_a_later_run(self, in_words: Hosts) -> None:
        site = Site(in_words, names(1))
        done = site.run({"gpu_plan": [SMALL, first()]})
        told = " ".join(done.stdout.split())
        assert done.returncode == 2 and in_words.calls("mig") == 0 and site.held() == {}, told
        assert "steps of class gpu_reset may have to be done" in told and "[playbook.needs_more_now]" in told, told


@pytest.mark.parametrize("by_its_turn", [False, True])
def test_idle_gpus_are_divided_with_a_place_and_in_a_window(in_words: Hosts, by_its_turn: bool) -> None:
    """A plan that disturbs nobody takes its node out of service where pods might come to what it changes."""
    site = Site(in_words, names(1))
    idle = planned(Plan(steps=(replace(MODE, disruption=Disruption.none),), leaving={MODE.id: ()}))
    assert (idle["disruption"], idle["drain"]) == ("none", "pods")
    done = site.run({"gpu_plan": [SMALL, idle] if by_its_turn else idle}, gpu_rollout_freezes=[freeze()])
    assert done.returncode == (2 if by_its_turn else 0) and in_words.calls("mig") == 0, done.stdout
    assert ("[playbook.needs_more_now]" in done.stdout) == by_its_turn, done.stdout


@pytest.mark.parametrize("labels, given, layout", [
    (False, "mine", "mine"), (True, "mine", "all-balanced"), (True, "", "all-balanced"), (False, "", "")])
def test_a_label_of_the_inventory_counts_where_the_node_says_none(
    controller: Controller, labels: bool, given: str, layout: str
) -> None:
    play = controller.directory / "label.json"
    there = {"of_hosts": {"host-1": {"name": "host-1", "labels": {LAYOUT: "all-balanced"}}}}
    play.write_text(json.dumps([{
        "hosts": "all", "gather_facts": False, "vars_files": [str(VARIABLES)],
        "tasks": [{"ansible.builtin.debug": {"msg": "layout={{ mig_label }}."}}]}]))
    done = controller.play(str(play), variables={
        "gpu_cluster_kubeconfig": "/kubeconfig", "gpu_mig_labels": labels, "node_maintenance_clusters": there,
        **({"mig_label": given} if given else {})})
    assert "layout=%s." % layout in done.stdout, done.stdout
