# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Nodes are repaired by the flow of site: in custody, within the budget, and given back only where nothing is sick."""
from __future__ import annotations

import copy
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import pytest
from canned import Hosts, planned
from cluster_api import Api
from sites import Site, held, names

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.custody import Custody, Taking
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.run import Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import (
    POWER_CYCLE,
    REBOOT,
    REPLACEMENT,
    Disruption,
    Plan,
    Requirement,
    Step,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.budget import DEFAULT_POOL, FAILED, Pool, Slot

RESET = Step("repair", "repair.reset", "0000:3b:00.0", "GPU 0000:3b:00.0: xid 95.", Disruption.gpu_reset,
             change={"before": {"GPU": "sick"}, "after": {"GPU": "reset (try 1)"}})
AGAIN = Step("repair", "repair.reset", "0000:3b:00.0", "GPU 0000:3b:00.0: xid 95.", Disruption.gpu_reset,
             change={"before": {"GPU": "sick"}, "after": {"GPU": "reset (try 2)"}})
OUT = Requirement("repair", REPLACEMENT, "GPU 0000:3b:00.0, serial number 1650", "It cannot be mended.",
                  Disruption.gpu_reset)
BOOT = Requirement("repair", REBOOT, "GPU 0000:3b:00.0", "xid 79.", Disruption.reboot)
CYCLE = Requirement("repair", POWER_CYCLE, "GPU 0000:3b:00.0", "xid 79.", Disruption.reboot)
STILL_SICK = {"failed": True, "changed": False, "code": "health.sick", "msg": "GPU 0000:3b:00.0 is sick still"}


def found(*codes: str) -> Dict[str, Any]:
    """What a look tells."""
    return {"changed": False, "gpus": 8, "verdict": "sick" if codes else "well", "findings": [
        {"code": code, "kind": "sick", "mended": "", "named": "GPU 0000:3b:00.0", "text": "said so", "to_do": "reset"}
        for code in codes]}


def plan_of(*parts: Any, allowed: Disruption = Disruption.driver_reload) -> Dict[str, Any]:
    """As gpu_plan has it of a repair; what it asks is what it does."""
    plan = Plan(steps=tuple(part for part in parts if isinstance(part, Step)),
                requirements=tuple(part for part in parts if isinstance(part, Requirement)))
    told = planned(plan, allowed, proof={})
    return dict(told, change=dict(told["change"], policy="repair=%s" % told["change"]["digest"] if parts else ""))


def host(*parts: Any, looks: Any = None, **more: Any) -> Dict[str, Any]:
    """One that is sick, with this plan."""
    done = {"changed": True, "reboot_required": False, "plan": {"requirements": [
        part.to_dict() for part in parts if isinstance(part, Requirement)]}}
    return {"gpu_health": looks or [found("xid 95"), found()], "gpu_plan": plan_of(*parts), "gpu_repair": done, **more}


WELL = {"gpu_health": found(), "gpu_plan": plan_of()}


@pytest.fixture
def site(in_words: Hosts) -> Site:
    return Site(in_words, names(4))


def repair(site: Site, canned: Dict[str, Any], *options: str, **variables: Any) -> str:
    rest = dict.fromkeys(site.there, WELL)
    done = site.run({**rest, **canned}, *options, playbook="repair", **variables)
    return done.stdout + done.stderr


def reason(site: Site, name: str = "gpu-1") -> str:
    return " ".join(next(each["metadata"].get("annotations", {}) for each in site.hosts.api.state.nodes
                         if each["metadata"]["name"] == name).values())


def repaired(site: Site) -> List[str]:
    return [name for name in site.there if site.hosts.calls("gpu_repair", name)]


def test_a_sick_node_is_repaired_validated_looked_at_and_given_back_and_nothing_else_is_changed(site: Site) -> None:
    told = repair(site, {"gpu-1": host(RESET)}, gpu_allowed_disruption="reboot", mig_reboot_timeout=1000)
    assert repaired(site) == ["gpu-1"] and site.cordoned() == [] and site.held() == {}, told
    # As long as a reboot may take, and what may hold a lock after it
    assert 1000 + 600 + 60 in [(request.body or {}).get("spec", {}).get("leaseDurationSeconds")
                               for request in site.hosts.api.state.requests]
    # On the host, and in its cluster before the node is opened
    assert site.hosts.calls("gpu_validation") == 2 and site.hosts.calls("gpu_health") == 2, told
    # It loads a driver anew where a repair wants that, and does nothing else then
    assert site.hosts.calls("gpu_driver_activation", "gpu-1") == site.hosts.calls("gpu_driver_activation") == 1, told
    others = ("gpu_driver", "mig", "container_runtime", "cdi_spec", "node_agent")
    assert [site.hosts.calls(module) for module in others] == [0] * len(others), told
    assert any(method == "PATCH" and path == "/api/v1/nodes/gpu-1" for method, path in site.hosts.writes()), told


def test_a_node_that_stays_sick_stays_out_and_only_another_try_is_made(site: Site) -> None:
    told = repair(site, {"gpu-1": host(RESET, looks=[found("xid 95"), STILL_SICK])})
    assert site.cordoned() == ["gpu-1"] and site.held() == {"gpu-1": "failed"}, told
    assert "is sick still" in reason(site), told
    same = repair(site, {"gpu-1": host(RESET)})
    assert "rollout.failed_before" in same and site.cordoned() == ["gpu-1"], same
    told = repair(site, {"gpu-1": host(AGAIN)})
    assert site.cordoned() == [] and site.held() == {}, told


@pytest.mark.variation
def test_others_are_repaired_after_one_that_stays_sick_as_far_as_the_budget_goes(site: Site) -> None:
    sick = {"gpu-1": host(RESET, looks=[found("xid 95"), STILL_SICK]), "gpu-2": host(AGAIN)}
    told = repair(site, sick, gpu_rollout_limit=2)
    assert repaired(site) == ["gpu-1", "gpu-2"] and site.cordoned() == ["gpu-1"], told


@pytest.mark.variation
def test_a_part_that_nothing_mends_is_named_on_its_node(site: Site) -> None:
    told = repair(site, {"gpu-1": host(OUT)})
    assert site.cordoned() == ["gpu-1"] and "serial number 1650" in reason(site), told
    assert "playbook.part_to_be_taken_out" in told


def test_what_is_not_allowed_is_put_off_and_takes_no_node_out(site: Site) -> None:
    told = repair(site, {"gpu-1": host(BOOT, looks=found("xid 79"))})
    assert site.cordoned() == [] and site.held() == {} and "Put off" in told, told
    assert "repair/reboot/GPU 0000:3b:00.0 (reboot: xid 79.)" in told


@pytest.mark.variation
def test_outside_the_windows_no_sick_node_is_touched(site: Site) -> None:
    window = {"days": (datetime.now(timezone.utc) + timedelta(days=3)).strftime("%a").lower(), "start": "12:00",
              "duration": "8h", "zone": "UTC"}
    told = repair(site, {"gpu-1": host(RESET, looks=found("xid 95"))}, gpu_rollout_windows=[window])
    assert repaired(site) == [] and site.cordoned() == [] and site.held() == {}, told
    assert "Left to a later run: no window is open; the next opens at " in told and " 12:00 UTC" in told, told


@pytest.mark.parametrize("policy, is_given_back", [("driver=a", False), ("repair=a", True)])
def test_what_was_left_half_done_is_given_back_where_a_repair_has_left_it(
    in_words: Hosts, policy: str, is_given_back: bool
) -> None:
    """A repair finds a host well in the middle of its driver's exchange, of which it asks nothing."""
    site = Site(in_words, names(2), gpu_1={"unschedulable": True, "annotations": {
        "gpuops.nvidia.com/cordoned-by": "gpuops"}})
    then = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(days=1)
    slot = Slot("gpu-1", "dead@other", then, policy=policy)
    site.record(lambda record: record.but(DEFAULT_POOL, held(slot, seen=then, seconds=1)))
    told = repair(site, {})
    assert site.cordoned() == ([] if is_given_back else ["gpu-1"]), told
    assert site.held() == ({} if is_given_back else {"gpu-1": "working"}), told


def test_what_a_killed_repair_still_holds_is_freed_though_nothing_is_sick_any_more(in_words: Hosts) -> None:
    """It had given its node back, and was killed before it said so."""
    site = Site(in_words, names(2))
    then = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(days=1)
    slot = Slot("gpu-1", "dead@other", then, policy="repair=a", aim="repair")
    site.record(lambda record: record.but(DEFAULT_POOL, held(slot, seen=then, seconds=1)))
    told = repair(site, {})
    assert site.held() == {} and "failed=1" not in told, told


@pytest.mark.variation
def test_what_is_sick_in_the_middle_of_another_change_is_left_to_that(in_words: Hosts) -> None:
    site = Site(in_words, names(2), gpu_1={"unschedulable": True, "annotations": {
        "gpuops.nvidia.com/cordoned-by": "gpuops"}})
    then = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(days=1)
    slot = Slot("gpu-1", "dead@other", then, policy="driver=a", proofs=("driver=a: x",), aim="x")
    site.record(lambda record: record.but(DEFAULT_POOL, held(slot, seen=then, seconds=1)))
    told = repair(site, {"gpu-1": host(RESET)})
    assert repaired(site) == [] and "[rollout.change_unfinished]" in told, told
    assert site.cordoned() == ["gpu-1"] and site.record().slots == {"gpu-1": slot}, told


def test_a_repair_leaves_a_node_to_a_person_whose_change_has_failed(in_words: Hosts) -> None:
    site = Site(in_words, names(2), gpu_1={"unschedulable": True, "annotations": {
        "gpuops.nvidia.com/cordoned-by": "a@other", "gpuops.nvidia.com/cordon-reason": "Failed: no driver."}})
    then = datetime.now(timezone.utc).replace(microsecond=0)
    failed = Slot("gpu-1", "a@other", then, FAILED, proofs=("policy: x",), policy="driver=a", reason="no driver")
    site.record(lambda record: record.but(DEFAULT_POOL, Pool(limit="1", slots={"gpu-1": failed})))
    told = repair(site, {"gpu-1": host(RESET)})
    assert repaired(site) == [] and "rollout.failed_before" in told and "no driver" in told, told
    assert site.cordoned() == ["gpu-1"] and site.record().slots == {"gpu-1": failed}, told


@pytest.mark.variation
def test_what_is_under_way_on_a_node_of_the_same_name_in_another_cluster_is_nothing_to_it(
    in_words: Hosts, tmp_path_factory: Any
) -> None:
    ours = {"unschedulable": True, "annotations": {"gpuops.nvidia.com/cordoned-by": "gpuops"}}
    then = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(days=1)
    api = Api(tmp_path_factory.mktemp("other"))
    other = Site(Hosts(in_words.controller, api), names(1), gpu_1=ours)
    site = Site(in_words, names(1), gpu_1=ours)
    for there, policy in ((site, "repair=a"), (other, "driver=a")):
        slot = Slot("gpu-1", "dead@other", then, policy=policy)
        there.record(lambda record, slot=slot: record.but(DEFAULT_POOL, held(slot, seen=then, seconds=1)))
    site.there = ("berlin", "paris")
    told = repair(site, {}, gpu_cluster_node_name="gpu-1", gpu_cluster_kubeconfig="{{ '%s' if %s else '%s' }}" % (
        in_words.api.kubeconfig, "inventory_hostname == 'berlin'", api.kubeconfig))
    assert site.cordoned() == [] and site.held() == {}, told
    assert other.cordoned() == ["gpu-1"] and other.held() == {"gpu-1": "working"}, told
    api.close()


@pytest.mark.variation
def test_what_was_kept_for_checks_that_pass_by_now_is_given_back(in_words: Hosts) -> None:
    site = Site(in_words, names(2), gpu_1={"unschedulable": True, "annotations": {
        "gpuops.nvidia.com/cordoned-by": "gpuops", "gpuops.nvidia.com/cordon-reason": "Failed: Xid 95."}})
    told = repair(site, {})
    assert site.cordoned() == [], told


def test_where_many_are_sick_at_once_none_is_repaired(in_words: Hosts) -> None:
    site = Site(in_words, names(12))
    sick = {name: host(RESET, looks=found("xid 79")) for name in names(10)}
    told = repair(site, sick)
    assert "10 of 12 nodes are sick of the same at once, xid 79: gpu-1, gpu-10, gpu-2, gpu-3, " in told
    assert "repair.many_are_sick" in told and repaired(site) == [] and site.hosts.writes() == [], told
    assert site.hosts.calls("gpu_plan") == 0


@pytest.mark.variation
def test_who_says_so_has_them_repaired_all_the_same(site: Site) -> None:
    sick = {name: host(RESET, looks=[found("xid 79"), found()]) for name in ("gpu-1", "gpu-2", "gpu-3")}
    told = repair(site, sick, gpu_repair_breaker=False, gpu_rollout_limit=3)
    assert repaired(site) == ["gpu-1", "gpu-2", "gpu-3"] and site.cordoned() == [], told


@pytest.mark.parametrize("said, repaired_ones", [
    ({"gpu_repair_max_failures": 0}, 1),
    pytest.param({"gpu_repair_max_failures": "", "gpu_repair_breaker": ""}, 2, marks=pytest.mark.variation)])
def test_a_repair_ends_after_the_failures_that_its_own_variable_says_and_not_where_it_is_left_empty(
    in_words: Hosts, said: Dict[str, Any], repaired_ones: int
) -> None:
    """As a form gives it where nobody has answered; and what it is itself, anybody may say of it."""
    site = Site(in_words, names(2))
    stays = host(RESET, looks=[found("xid 95"), STILL_SICK])
    told = repair(site, dict.fromkeys(site.there, stays), "--forks", "1", "-e", json.dumps(said), "-e",
                  '{"gpu_components": [], "gpu_rollout_canaries": "none", "gpu_run_repairs": "true"}',
                  gpu_rollout_limit=2, gpu_rollout_timeout=5)
    assert len(repaired(site)) == repaired_ones, told
    assert ("raise `gpu_repair_max_failures`. [rollout.too_many_failures]" in told) == (repaired_ones == 1), told


def test_what_would_make_it_something_else_than_a_repair_is_refused_before_anything_is_touched(site: Site) -> None:
    """Extra variables overrule those of a play, and in AWX those of a template are extra ones."""
    others = {"gpu_rollout_canaries": "every_kind", "gpu_rollout_aim": "workflow-12", "gpu_rollout_max_failures": 0,
              "gpu_components": ["device_plugin"]}
    told = repair(site, {"gpu-1": host(RESET)}, "--check", "-e", json.dumps(others))
    assert site.hosts.calls("gpu_health") == 0 and site.hosts.writes() == [], told
    assert "[playbook.not_a_repair]" in told and all(name in told for name in others), told
    assert "gpu_components=[], gpu_rollout_aim=repair, gpu_rollout_canaries=none, gpu_rollout_max" in told, told


@pytest.mark.variation
def test_a_healthy_fleet_is_left_alone(site: Site) -> None:
    told = repair(site, {})
    assert repaired(site) == [] and "failed=0" in told and "failed=1" not in told, told
    assert site.cordoned() == [] and site.held() == {}


@pytest.mark.variation
def test_check_mode_tells_what_would_be_done_and_does_nothing(site: Site) -> None:
    before = copy.deepcopy(site.hosts.api.state.nodes)
    told = repair(site, {"gpu-1": host(RESET, looks=found("xid 95"))}, "--check")
    assert site.hosts.api.state.nodes == before and "failed=1" not in told, told
    assert site.hosts.calls("gpu_repair") == 0, "its pods have the GPU still"


@pytest.mark.variation
def test_hosts_of_no_cluster_are_repaired_too(in_words: Hosts) -> None:
    site = Site(in_words, names(1))
    done = site.run({"gpu-1": host(RESET)}, playbook="repair", cluster=False)
    assert repaired(site) == ["gpu-1"], done.stdout


FAKE = '''#!/usr/bin/python
import json
from ansible.module_utils.basic import AnsibleModule

module = AnsibleModule(argument_spec={name: {"type": "str", "no_log": name == "password"} for name in (
    "category", "command", "baseuri", "username", "password", "resource_id", "timeout", "name", "user", "port",
    "state")})
with open("%s", "a") as told:
    told.write("%%s\\n" %% (module.params["command"] or module.params["state"]))
module.exit_json(changed=True)
'''


def switched(
    in_words: Hosts, tmp_path: Path, via: str, needs_more: Sequence[Requirement] = ()
) -> Tuple[Site, str, List[str]]:
    """(the site, what the run has said, what was asked of the host's controller). With modules of another collection,
    which is needed nowhere else; here they only write down what is asked.

    needs_more: what the host needs still when it answers again.
    """
    told, modules = tmp_path / "power", tmp_path / "ansible_collections/community/general/plugins/modules"
    modules.mkdir(parents=True)
    for name in ("redfish_command", "ipmi_power"):
        (modules / (name + ".py")).write_text(FAKE % told)
    there = host(CYCLE)
    there["gpu_plan"] = plan_of(CYCLE, allowed=Disruption.reboot)
    there["gpu_repair"] = [there["gpu_repair"], dict(there["gpu_repair"], plan={
        "requirements": [each.to_dict() for each in needs_more]})]
    site = Site(in_words, names(1))
    done = in_words.controller.play(
        "gpuops.nvidia.repair", "--tags", "hosts", hosts=("gpu-1",),
        environment={"ANSIBLE_COLLECTIONS_PATH": "%s:%s" % (in_words.root, tmp_path)}, variables={
            "gpu_cluster_kubeconfig": str(in_words.api.kubeconfig), "canned": there, "node_maintenance_timeout": 1,
            "gpu_allowed_disruption": "reboot", "gpu_power_cycle": {
                "via": via, "address": "bmc", "user": "ann", "password": "secret", "pause": 0}})
    return site, done.stdout + done.stderr, told.read_text().split() if told.exists() else []


@pytest.mark.variation
@pytest.mark.parametrize("via, asked", [
    ("redfish", ["PowerCycle"]), ("ipmi", ["off", "on"])])
def test_the_power_is_switched_by_whom_the_variable_names(
    in_words: Hosts, tmp_path: Path, via: str, asked: List[str]
) -> None:
    site, told, done = switched(in_words, tmp_path, via)
    assert done == asked and site.cordoned() == [] and in_words.calls("gpu_repair") == 2 and "secret" not in told, told
    assert in_words.calls("gpu_health") == 3, "what was done is written down, and looked at"


@pytest.mark.variation
def test_a_power_cycle_that_did_not_come_mends_nothing(in_words: Hosts, tmp_path: Path) -> None:
    """As where another host's power was switched."""
    site, told, done = switched(in_words, tmp_path, "redfish", [CYCLE])
    assert done == ["PowerCycle"] and "playbook.no_power_cycle" in told and site.cordoned() == ["gpu-1"], told
    assert in_words.calls("gpu_health") == 1, "it is not written down"


@pytest.mark.parametrize("change, code", [
    ({"via": "Redfish"}, "malformed"), ({"password": ""}, "malformed"), ({}, "unavailable")])
def test_a_power_cycle_that_nobody_can_do_is_refused_before_anything_is_done(
    site: Site, change: Dict[str, str], code: str
) -> None:
    """At the task itself a module that is not there ends the run for every host."""
    cycle = {"via": "redfish", "address": "bmc", "user": "ann", "password": "secret", **change}
    done = site.hosts.controller.play(
        "gpuops.nvidia.repair", hosts=("gpu-1",), variables={"canned": host(RESET), "gpu_power_cycle": cycle},
        # Without those that come with the package ansible
        environment={"ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "false", "ANSIBLE_COLLECTIONS_PATH": str(site.hosts.root)})
    told = done.stdout + done.stderr
    assert "[playbook.power_cycle_%s]" % code in told and "secret" not in told, told
    assert site.hosts.calls("gpu_health") == 0 and site.hosts.writes() == []


def test_what_is_sick_where_a_killed_run_had_finished_is_a_repairs(in_words: Hosts) -> None:
    """Its change needs nothing more, so that no run of site would ever bring it to an end."""
    site = Site(in_words, names(2))
    then = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(days=1)
    slot = Slot("gpu-1", "dead@other", then, policy="driver=1", aim="y")
    site.record(lambda record: record.but(DEFAULT_POOL, held(slot, seen=then, seconds=1)))
    Custody(site.client, Run("dead", "other"), "gpuops", 1, 0, str).take("gpu-1", Taking("maintenance"))
    nothing = plan_of()
    done = site.run({"gpu-1": {"gpu_plan": {**nothing, "validated": False, "checks": []}, "gpu_validation": STILL_SICK},
                     "gpu-2": {"gpu_plan": nothing}})
    assert done.returncode == 2 and "is sick still" in done.stdout, done.stdout
    assert site.cordoned() == ["gpu-1"] and site.held() == {} and "is sick still" in reason(site)
    told = repair(site, {"gpu-1": host(RESET)})
    assert repaired(site) == ["gpu-1"] and site.cordoned() == [] and site.held() == {}, told
