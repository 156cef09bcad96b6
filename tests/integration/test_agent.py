# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command gpuops on hosts: what it plans and does is what a controller plans and does, and needs none.

Two hosts alike: `site` installs the one; the other has a kubelet, the agent and nothing else, and boots: as a node that
an autoscaler has made. No controller has a part in it.
"""
from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Dict, Iterator, List, Set, Tuple

import pytest
from documentation import example
from laboratory import Fleet, assert_journal_is_plan, changed_by_us, new_lab

from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.policy import POLICY_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import canonical
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.waiting import wait_for
from gpulab import silicon
from gpulab.parts import cloud_init
from gpulab.topology import parse

ASKED, BORN = "asked", "born"
AGENT = [{"ansible.builtin.include_role": {"name": "gpuops.nvidia.node_agent"}}]
POLICY = {"node_agent_state": "present", "node_agent_boot": "hold", "gpu_validation_expected_gpus": 2,
          "gpu_settings_gpus": [{"match": ["all"], "power_limit": 150}], "gpu_cluster_kubeconfig": ""}
UNIT = "gpuops-nvidia-boot.service"
WATCH_UNIT = "gpuops-nvidia-watch.service"
BOOT_SECONDS = 600
NODE_SECONDS = 120


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("agent")
    lab.up(parse({"name": "agent", "control_plane": True, "hosts": [
        {"name": name, "board": "a30", "gpus": 2, "join": name == BORN} for name in (ASKED, BORN)]}, "test_agent.py"))
    fleet = Fleet(lab, tmp_path_factory.mktemp("agent"))
    forget_node(fleet)
    yield fleet
    lab.down()


def forget_node(fleet: Fleet) -> None:
    """The cluster knows nothing of it until its kubelet starts."""
    fleet.say(BORN, "systemctl", "stop", "kubelet")
    fleet.lab.kubectl(["delete", "node", BORN, "--ignore-not-found"])


def nodes(fleet: Fleet) -> Dict[str, Dict[str, Any]]:
    listed = json.loads(fleet.lab.kubectl(["get", "nodes", "-o", "json"]).stdout)["items"]
    return {node["metadata"]["name"]: node for node in listed}


def is_ready(found: Dict[str, Dict[str, Any]]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True"
               for node in found.values() for each in node["status"].get("conditions", []))


@pytest.fixture(scope="module")
def before(fleet: Fleet) -> Dict[str, str]:
    return fleet.fingerprint(BORN)


@pytest.fixture(scope="module")
def by_site(fleet: Fleet) -> str:
    """The host that a controller has set up."""
    fleet.play("gpuops.nvidia.site", "--limit", ASKED, **POLICY)
    return ASKED


def asked_to_plan(fleet: Fleet) -> Dict[str, Any]:
    """By a controller."""
    played = fleet.tasks(BORN, [{"gpuops.nvidia.gpu_plan": {"from_variables": True}}], **POLICY)
    return dict(played.result(BORN, "gpu_plan")["plan"])


def written(events: List[Dict[str, Any]]) -> List[Tuple[str, str]]:
    """(event, step) of what is no agent's, without what is a GPU's own."""
    return [(event["event"], event["step"]["id"].partition("GPU-")[0]) for event in events
            if event["step"]["capability"] != "agent"]


def closed(fleet: Fleet, host: str) -> Set[str]:
    """Steps that are over, by us or by scripts of packages."""
    return {step for event, step in written(fleet.events(host)) if event in ("done", "satisfied")}


def booted(fleet: Fleet) -> Dict[str, str]:
    """The host once it has started: states of our unit and the kubelet, and what became of it."""
    fleet.lab.reboot(BORN)

    def told() -> Dict[str, str]:
        states = {name: fleet.say(BORN, "systemctl", "is-active", name) for name in (UNIT, "kubelet.service")}
        return {"unit": states[UNIT], "kubelet": states["kubelet.service"],
                **json.loads(fleet.say(BORN, "cat", "/run/gpuops/boot.json") or "{}")}

    seen, ended = wait_for(told, lambda seen: seen["unit"] in ("active", "failed"), BOOT_SECONDS, 1)
    assert ended, (seen, said(fleet))
    fleet.lab.ssh(BORN, ["systemctl", "is-system-running", "--wait"], check=False)
    return told()


def power_limits(fleet: Fleet) -> List[str]:
    return fleet.say(BORN, "nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader,nounits").split()


def said(fleet: Fleet) -> str:
    return fleet.say(BORN, "journalctl", "-b", "-u", UNIT)


def test_the_role_brings_the_command_and_its_policy(fleet: Fleet, before: Dict[str, str]) -> None:
    assert fleet.tasks(BORN, AGENT, **POLICY).code == 0
    again = fleet.tasks(BORN, AGENT, **POLICY)
    assert again.code == 0 and again.changes() == []
    assert fleet.say(BORN, "stat", "-c", "%a %U", POLICY_FILE) == "600 root"
    code, told = fleet.gpuops(BORN, "info")
    assert code == 0 and len(told["observation"]["pci"]["gpus"]) == 2


def test_its_plan_of_a_bare_host_is_the_controllers(fleet: Fleet) -> None:
    code, told = fleet.gpuops(BORN, "plan")
    assert code == 0 and len(told["plan"]["steps"]) > 10
    assert canonical(told["plan"]) == canonical(asked_to_plan(fleet))
    assert "packages.install" in fleet.say(BORN, "gpuops", "plan")


def test_a_bare_host_becomes_a_validated_node_before_its_kubelet_starts(fleet: Fleet, by_site: str) -> None:
    """By itself, as site would have made it one."""
    planned, since = fleet.gpuops(BORN, "plan")[1]["plan"], len(fleet.events(BORN))
    told = booted(fleet)
    assert (told["unit"], told["kubelet"], told["state"]) == ("active", "active", "validated"), (told, said(fleet))
    started = [int(fleet.say(BORN, "systemctl", "show", "--value", "-p", "ActiveEnterTimestampMonotonic", name))
               for name in (UNIT, "kubelet.service")]
    assert started[0] <= started[1]
    # What the GPUs are set to could be planned only once their driver answered
    assert_journal_is_plan([event for event in fleet.events(BORN)[since:]
                            if event["step"]["capability"] not in planned["waiting"]], planned)
    # What scripts of packages start while a host runs, they leave alone while it boots
    assert closed(fleet, BORN) == closed(fleet, by_site)
    assert fleet.packages(BORN) == fleet.packages(by_site)
    assert fleet.kept(BORN)["packages"] == fleet.kept(by_site)["packages"]


def test_it_joins_its_cluster_then_and_takes_pods(fleet: Fleet) -> None:
    found, ready = wait_for(lambda: nodes(fleet), is_ready, NODE_SECONDS, 1)
    assert ready and list(found) == [BORN], found
    made = datetime.fromisoformat(found[BORN]["metadata"]["creationTimestamp"].replace("Z", "+00:00")).timestamp()
    validated = json.loads(fleet.say(BORN, "cat", "/run/gpuops/boot.json"))
    assert validated["state"] == "validated" and made >= int(validated["until"])
    assert not found[BORN]["spec"].get("unschedulable") and not found[BORN]["spec"].get("taints")


def test_what_it_installed_needs_nothing_more_of_either(fleet: Fleet) -> None:
    code, told = fleet.gpuops(BORN, "plan")
    assert code == 0 and told["converged"] and told["plan"]["steps"] == []
    assert canonical(told["plan"]) == canonical(asked_to_plan(fleet))
    assert fleet.play("gpuops.nvidia.site", "--limit", BORN, **POLICY).changes() == []


def test_a_person_finds_out_what_is_wrong_and_mends_it(fleet: Fleet) -> None:
    code, told = fleet.gpuops(BORN, "validate")
    assert code == 0 and {check["status"] for check in told["checks"]} == {"passed"}, told
    fleet.say(BORN, "mv", "/var/run/cdi/nvidia.yaml", "/root/")
    code, told = fleet.gpuops(BORN, "validate")
    assert code == 1 and told["failed"] and told["remedy"]
    code, told = fleet.gpuops(BORN, "apply")
    assert code == 0 and {step.split("/")[0] for step in told["applied"]} == {"cdi"}
    assert fleet.gpuops(BORN, "validate")[0] == 0
    assert "cdi.generate" in fleet.say(BORN, "gpuops", "history")


def test_what_a_boot_loses_is_back_before_the_kubelet_and_nothing_else_is_done(fleet: Fleet) -> None:
    since = len(fleet.events(BORN))
    told = booted(fleet)
    assert (told["kubelet"], told["state"]) == ("active", "validated")
    assert {event["step"]["capability"] for event in fleet.events(BORN)[since:]} <= {"settings", "cdi"}
    assert power_limits(fleet) == ["150.00", "150.00"]


def watching(fleet: Fleet) -> Dict[str, str]:
    """What systemd says of the unit that watches, and what that has found."""
    told = fleet.say(BORN, "systemctl", "show", "-p", "ActiveState,MainPID,NeedDaemonReload", WATCH_UNIT)
    return {**dict(line.split("=", 1) for line in told.splitlines()),
            "summary": fleet.say(BORN, "cat", "/run/gpuops-health/summary.json")}


def test_what_watches_starts_at_once_without_a_reload_and_after_each_boot(fleet: Fleet) -> None:
    def looked() -> Dict[str, str]:
        return wait_for(lambda: watching(fleet), lambda told: bool(told["summary"]), BOOT_SECONDS, 1)[0]

    watched = {**POLICY, "node_agent_watch": True}
    assert fleet.tasks(BORN, AGENT, **watched).code == 0
    told = looked()
    assert (told["ActiveState"], told["NeedDaemonReload"], json.loads(told["summary"])["schema"]) == ("active", "no", 1)
    assert fleet.tasks(BORN, AGENT, **watched).changes() == []
    assert watching(fleet)["MainPID"] == told["MainPID"]
    booted(fleet)
    assert looked()["ActiveState"] == "active"
    assert fleet.tasks(BORN, AGENT, **POLICY).code == 0
    assert watching(fleet)["ActiveState"] == "inactive"


def test_a_node_that_computes_wrongly_starts_no_kubelet_and_says_why(fleet: Fleet) -> None:
    host = fleet.lab.host(BORN)
    silicon.inject_fault(host.silicon, "wrong-result", 1, sm=3)
    try:
        told = booted(fleet)
    finally:
        silicon.clear_faults(host.silicon)
    assert (told["unit"], told["state"]) == ("failed", "failed")
    assert told["kubelet"] != "active"
    for seen in (told["reason"], said(fleet), host.console.read_text(errors="replace")):
        assert "multiprocessor 3" in seen
    fleet.say(BORN, "systemctl", "start", "kubelet")
    assert fleet.say(BORN, "systemctl", "is-active", "kubelet") == "active"


def test_it_goes_with_all_that_came_by_it(fleet: Fleet, before: Dict[str, str]) -> None:
    """By a controller: what the one has brought, the other takes back."""
    fleet.play("gpuops.nvidia.uninstall", "--limit", BORN, gpu_uninstall_confirmed=True)
    assert changed_by_us(before, fleet.fingerprint(BORN)) == {}
    assert fleet.say(BORN, "ls", "/etc/gpuops", "/usr/local/sbin/gpuops", "/var/lib/gpuops/agent") == ""


def test_a_host_whose_packages_cannot_be_had_starts_no_kubelet(fleet: Fleet) -> None:
    nowhere = "http://packages.gpulab:1/nothing"
    # Asked for again for twenty seconds, and then given up
    assert fleet.tasks(BORN, AGENT, **{
        **POLICY, "gpu_driver_repository_url": nowhere, "node_agent_boot_timeout": 320}).code == 0
    forget_node(fleet)
    told = booted(fleet)
    assert (told["unit"], told["state"]) == ("failed", "failed")
    assert told["kubelet"] != "active" and nowhere in told["reason"]
    assert nodes(fleet) == {}


@pytest.mark.variation
def test_by_a_person_it_writes_the_journal_that_site_writes(fleet: Fleet, by_site: str) -> None:
    """Event by event, on a host that has fetched nothing yet, as the other had not."""
    fleet.lab.reset(BORN)
    forget_node(fleet)
    assert fleet.tasks(BORN, AGENT, **POLICY).code == 0
    since = len(fleet.events(BORN))
    code, told = fleet.gpuops(BORN, "apply")
    assert code == 0, told
    assert written(fleet.events(BORN)[since:]) == written(fleet.events(by_site))
    assert fleet.gpuops(BORN, "validate")[0] == 0


@pytest.mark.variation
def test_what_is_sick_is_mended_by_who_asks_the_host_where_its_policy_says_so(fleet: Fleet) -> None:
    assert fleet.tasks(BORN, AGENT, gpu_repair_state="repaired", **POLICY).code == 0
    assert fleet.gpuops(BORN, "plan")[1]["converged"]
    silicon.inject_fault(fleet.lab.host(BORN).silicon, "recovery", 1)
    told = fleet.gpuops(BORN, "health")[1]
    assert (told["verdict"], told["remedy"], len(told["findings"])) == ("sick", "reset", 1), told
    assert [step["action"] for step in fleet.gpuops(BORN, "plan")[1]["plan"]["steps"]] == ["repair.reset"]
    code, told = fleet.gpuops(BORN, "apply")
    assert code == 0 and [step.split("/")[1] for step in told["applied"]] == ["repair.reset"], told
    assert fleet.gpuops(BORN, "validate")[0] == 0 and fleet.gpuops(BORN, "health")[1]["findings"] == []
    assert fleet.gpuops(BORN, "plan")[1]["converged"]
    assert power_limits(fleet) == ["150.00", "150.00"]


# Of an image, and of the pool that is made of it


SEED = "/var/lib/cloud/seed/nocloud"
# All else that it would set up (names, networks, accounts, package sources) is the laboratory's
CLOUD_INIT = {"datasource_list": ["NoCloud"], "network": {"config": "disabled"}, "preserve_hostname": True,
              "cloud_init_modules": ["write-files"], "cloud_config_modules": [], "cloud_final_modules": []}


@pytest.mark.variation
def test_a_pool_says_by_cloud_init_what_its_nodes_are_to_be(fleet: Fleet) -> None:
    """What a real cloud-init writes while the host boots counts for that boot."""
    assert fleet.tasks(BORN, AGENT, **POLICY).code == 0
    policy = json.loads(fleet.say(BORN, "cat", POLICY_FILE))
    policy["policy"]["settings"]["gpus"][0]["power_limit"] = 140
    [file] = example("agent.md", "write_files")["write_files"]
    told = {"write_files": [{**file, "content": json.dumps(policy)}]}
    placed = {"/etc/cloud/cloud.cfg.d/90-laboratory.cfg": json.dumps(CLOUD_INIT),
              SEED + "/meta-data": "instance-id: a\n", SEED + "/user-data": "#cloud-config\n" + json.dumps(told)}
    fleet.lab.serve(cloud_init.NAME, cloud_init.NAME)
    fleet.offer(BORN, "cloud-init", cloud_init.NAME, "bookworm", "main")
    assert fleet.tasks(BORN, [
        {"ansible.builtin.apt": {"name": "cloud-init", "install_recommends": False}},
        {"ansible.builtin.file": {"path": SEED, "state": "directory"}},
        *({"ansible.builtin.copy": {"dest": path, "content": text}} for path, text in placed.items())]).code == 0
    told = booted(fleet)
    assert (told["kubelet"], told["state"]) == ("active", "validated"), (told, said(fleet))
    assert power_limits(fleet) == ["140.00", "140.00"]
    assert json.loads(fleet.say(BORN, "cat", POLICY_FILE)) == policy
    assert fleet.say(BORN, "stat", "-c", "%a %U", POLICY_FILE) == "600 root"
    assert fleet.tasks(BORN, [{"ansible.builtin.apt": {"name": "cloud-init", "state": "absent", "purge": True}},
                              {"ansible.builtin.file": {"path": SEED, "state": "absent"}}]).code == 0
    fleet.withdraw(BORN, "cloud-init")


@pytest.mark.variation
def test_an_image_that_has_its_driver_boots_into_a_validated_node(fleet: Fleet) -> None:
    """As the page makes it, from what the test before has installed."""
    [play] = example("agent.md", "hosts: image")
    [role] = play["roles"]
    variables = {**role["vars"], "gpu_driver_source": "preinstalled", "gpu_validation_expected_gpus": 2,
                 "gpu_cluster_kubeconfig": ""}
    fleet.play("gpuops.nvidia.uninstall", "--limit", BORN, gpu_uninstall_confirmed=True)
    driver = [{"ansible.builtin.include_role": {"name": "gpuops.nvidia.gpu_driver"}}]
    assert fleet.tasks(BORN, driver).code == 0
    packages = fleet.packages(BORN)
    image = fleet.scratch / "image.json"
    image.write_text(json.dumps([{**play, "hosts": BORN, "roles": [{**role, "vars": {}}]}]))
    fleet.play(str(image), **variables)
    forget_node(fleet)
    told = booted(fleet)
    assert (told["kubelet"], told["state"]) == ("active", "validated"), (told, said(fleet))
    assert {name: version for name, version in fleet.packages(BORN).items() if name in packages} == packages
    found, ready = wait_for(lambda: nodes(fleet), is_ready, NODE_SECONDS, 1)
    assert ready and not found[BORN]["spec"].get("taints")
