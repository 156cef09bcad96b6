# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""site and stage where hosts fail, or are done, beside the turns of a cluster: what that means for all others."""
from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any, Dict, Sequence

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from canned import Hosts, planned
from sites import CHANGE, DRIVER, NOTHING, Site, freeze, names
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.action.gpu_rollout import _order
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.budget import DEFAULT_POOL, FAILED, Pool, Slot
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.role_variables import trust_as_template

# More than may be done, and too much to drain the node for the rest
HALF = planned(Plan(steps=(DRIVER, Step("driver", "host.reboot", "driver", "Reboot.", Disruption.reboot))))
FAILS = {"failed": True, "changed": True, "msg": "it does not load"}


def of_no_cluster(site: Site, *hosts: str) -> Sequence[str]:
    """The words that add such hosts."""
    site.there = (*site.there, *hosts)
    path = site.hosts.controller.directory / "of_no_cluster.json"
    path.write_text(json.dumps({"all": {"hosts": {name: {"gpu_cluster_kubeconfig": ""} for name in hosts}}}))
    return "--inventory", str(path)


@pytest.mark.variation
def test_who_is_refused_or_of_no_cluster_takes_no_place_and_ends_nothing_for_the_nodes(in_words: Hosts) -> None:
    """Two hosts that fail at once, one in each of their batches: Ansible ends the run there."""
    site = Site(in_words, names(3))
    own = of_no_cluster(site, "alone-1", "alone-2")
    done = site.run({"gpu-1": {"gpu_plan": CHANGE}, "gpu-2": {"gpu_plan": HALF}, "gpu-3": {"gpu_plan": CHANGE},
                     **dict.fromkeys(("alone-1", "alone-2"), {"gpu_plan": CHANGE, "gpu_driver_activation": FAILS})},
                    *own, "-e", "gpu_serial=", gpu_rollout_timeout=120)
    assert done.returncode == 2 and "[playbook.disturbs_more_than_allowed]" in done.stdout, done.stdout
    assert {"gpu-1", "gpu-3"} == set(site.changed()).intersection(names(3)) and site.cordoned() == []
    assert len(set(site.changed()).intersection(("alone-1", "alone-2"))) == 1 and site.record().rollout is None


def test_a_failure_of_a_host_that_needs_nothing_is_told_where_nothing_is_to_be_done(in_words: Hosts) -> None:
    site = Site(in_words, names(2))
    failed = Slot("gpu-1", "a@other", datetime.now(timezone.utc).replace(microsecond=0), FAILED, reason="Xid 79")
    site.record(lambda record: record.but(DEFAULT_POOL, Pool(limit="1", slots={"gpu-1": failed})))
    done = site.run({"gpu_plan": NOTHING})
    assert done.returncode == 2 and "Xid 79" in done.stdout and "[rollout.failed_before]" in done.stdout, done.stdout


@pytest.mark.variation
def test_the_plan_shows_no_turn_of_a_host_that_site_would_refuse(in_words: Hosts) -> None:
    site = Site(in_words, names(3))
    done = site.run({"gpu-1": {"gpu_plan": HALF}, "gpu-2": {"gpu_plan": CHANGE}, "gpu-3": {"gpu_plan": NOTHING}},
                    playbook="plan", tags=(), gpu_mig_labels=True)
    assert done.returncode == 2 and "[playbook.disturbs_more_than_allowed]" in done.stdout, done.stdout
    assert in_words.writes() == [] and "gpu-2: canary of" in done.stdout + done.stderr


@pytest.mark.variation
@pytest.mark.parametrize("playbook, tags", [("site", ("--tags", "hosts")), ("uninstall", ())])
def test_a_serial_that_is_none_is_refused_before_anything_is_done(
    in_words: Hosts, playbook: str, tags: Sequence[str]
) -> None:
    site = Site(in_words, names(1))
    done = site.run({"gpu_plan": CHANGE}, "-e", "gpu_serial=0", playbook=playbook, tags=tags)
    assert done.returncode == 2 and "[playbook.serial_is_none]" in done.stdout and site.changed() == [], done.stdout
    assert in_words.calls("gpu_plan") == 0


@pytest.mark.parametrize("serial, is_one", [
    *((each, True) for each in (1, "2", "20%", "010%", [1, "5%"], "", None, 0)),
    *((each, False) for each in ("two", "0", "00", "0%", "1.5", "-1", [1, 0], ["", 1], " 1"))])
def test_what_is_a_serial_is_at_least_one(serial: Any, is_one: bool) -> None:
    """In text, Ansible takes 0 for all hosts at once. A number 0 is as good as none."""
    [task] = yaml.safe_load((REPOSITORY / "playbooks" / "tasks" / "serial.yml").read_text())
    templar = Templar(DataLoader(), variables={"gpu_serial": serial})
    assert templar.template(trust_as_template("{{ %s }}" % task["when"])) != is_one


@pytest.mark.variation
def test_a_site_that_is_imported_again_says_nothing_of_what_the_first_one_left(in_words: Hosts) -> None:
    site = Site(in_words, names(1))
    path = in_words.controller.directory / "importing.json"
    path.write_text(json.dumps([
        {"import_playbook": "gpuops.nvidia.site", "vars": {"gpu_rollout_freezes": [freeze()]}},
        {"import_playbook": "gpuops.nvidia.site"}]))
    done = in_words.controller.play(
        str(path), "--tags", "hosts", hosts=site.there,
        environment={"ANSIBLE_COLLECTIONS_PATH": str(in_words.root)}, variables={
            "gpu_cluster_kubeconfig": str(in_words.api.kubeconfig), "canned": {"gpu_plan": CHANGE},
            "node_maintenance_timeout": 1, "gpu_components": [], "gpu_rollout_timeout": 2, "gpu_rollout_interval": 1})
    assert done.returncode == 0 and site.changed() == names(1), done.stdout
    assert done.stdout.count("Left to a later run") == 1


@pytest.mark.variation
@pytest.mark.parametrize("tasks, words", [
    (None, "/checks.yml"),
    ([{"ansible.builtin.set_fact": {"gpu_rollout_found": "Xid 63"}}], "[playbook.found_is_no_list]")])
def test_checks_that_cannot_be_done_or_compared_fail_their_host(in_words: Hosts, tasks: Any, words: str) -> None:
    site = Site(in_words, names(1))
    path = in_words.controller.directory / "checks.yml"
    if tasks is not None:
        path.write_text(json.dumps(tasks))
    done = site.run({"gpu_plan": CHANGE}, gpu_rollout_checks=str(path))
    assert done.returncode == 2 and words in done.stdout and "is undefined" not in done.stdout, done.stdout
    assert site.changed() == []


@pytest.mark.variation
def test_stage_writes_nothing_to_the_cluster(in_words: Hosts) -> None:
    site = Site(in_words, names(1), gpu_1={"labels": {"nvidia.com/mig.config": "all-1g.10gb"}})
    refused = planned(Plan(steps=(DRIVER,), refusals=(Refusal("driver.held", "found", "wanted", "remedy"),)))
    done = site.run({"gpu_plan": refused}, playbook="stage", tags=(), gpu_mig_labels=True)
    assert done.returncode == 2 and "[driver.held]" in done.stdout and in_words.writes() == [], done.stdout


def test_hosts_of_one_cluster_keep_none_of_another_waiting() -> None:
    def rollout(beside: Sequence[str], *units: Sequence[str]) -> Dict[str, Any]:
        return {"rollout": {"beside": beside, "units": [{"hosts": unit} for unit in units]}}

    assert _order([rollout(["a1"], ["a2"], ["a3", "a4"], ["a5"]), rollout(["b1"], ["b2"]), rollout([])]) == [
        "a1", "b1", "a2", "b2", "a3", "a4", "a5"]
