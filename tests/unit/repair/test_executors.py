# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Simulated GPUs are mended by their own nvidia-smi: what is tried is known before, and what became of it after."""
from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from reset_host import DCGM, PARTS, PERSISTENCED, ResetHost, every_part
from simulated_board import VERSION

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.findings import GPU, HOST, Finding, Moment, Subject
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.model import Known, Service, State
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.policy import AGENTS
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.state import look_and_keep
from ansible_collections.gpuops.nvidia.plugins.module_utils.repair import executors, planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.repair.attempts import Attempt, Part
from ansible_collections.gpuops.nvidia.plugins.module_utils.repair.policy import Policy
from gpulab import silicon

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
PLACES = ("0000:17:00.0", "0000:31:00.0")
BEGUN = Moment(1_700_000_000.0, "one")

LOOK = """
import json, sys
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.policy import HealthPolicy
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.state import look_and_keep
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute import levels, parent, record
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.model import Device
host = Host(sys.argv[1])
begun = record.kept(host)
proofs = parent.prove_all([Device(uuid, uuid, True) for uuid in sys.argv[2:]], levels.LEVELS["quick"])
record.keep(host, begun, "quick", proofs, False)
state = look_and_keep(host, HealthPolicy())
print(json.dumps([[[each.code, each.kind, each.remedy, each.subject.uuid] for each in state.findings.values()],
                  [[each.code, each.cleared_by] for each in state.history]]))
"""


class SickHost(ResetHost):
    def compute_and_look(self) -> List[Any]:
        """On this machine's own boot: [what is found, what has ended]."""
        library = self.root / "usr/lib64" / ("libnvidia-ml.so." + VERSION)
        if not library.exists():
            library.parent.mkdir(parents=True)
            library.touch()
            (library.parent / "libnvidia-ml.so.1").symlink_to(library.name)
            (self.root / "sys/module/nvidia/version").write_text(VERSION)
            (self.root / "dev").mkdir(exist_ok=True)
            (self.root / "dev/kmsg").write_text("6,0,1,-;Linux version 6.12\n")
            (self.root / "boot-id").write_text(Host().boot())
            (self.directory / "dev" / "nvidia-uvm").touch()
        found: List[Any] = self.say(LOOK, str(self.root), *self.uuids())
        return found

    def found(self, *findings: Finding) -> None:
        """Somebody has looked, and has found this."""
        state = State(
            boot="one", rounds=3, taken=1, at=BEGUN.at, findings={each.key: each for each in findings},
            gpus={uuid: Known(uuid, address=place) for uuid, place in zip(self.uuids(), PLACES)},
            services={"nvidia-fabricmanager.service": Service("inactive", "")})
        path = self.root / "var/lib/gpuops/health.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(state.to_dict()))

    def sick(self, gpu: int = 0, code: str = "xid 95", remedy: str = "reset") -> Finding:
        subject = Subject(GPU, self.uuids()[gpu], "165%d" % gpu, PLACES[gpu])
        return Finding(subject, "kernel_log", code, "sick", remedy, "said so", BEGUN, BEGUN)

    def repair(self, kill: int = 0, allowed: str = "reboot", **parameters: Any) -> Dict[str, Any]:
        return self.ask("apply", capability="repair", kill=kill, allowed=allowed, approved=None, parameters=parameters)

    def attempts(self) -> List[Dict[str, Any]]:
        path = self.root / "var/lib/gpuops/repairs.json"
        found: List[Dict[str, Any]] = json.loads(path.read_text())["attempts"] if path.exists() else []
        return found

    def mended(self) -> List[str]:
        """What was done that is the remedy of each finding."""
        path = self.root / "run/gpuops/health.json"
        path = path if path.exists() else self.root / "var/lib/gpuops/health.json"
        return [each["mended"] for _key, each in sorted(json.loads(path.read_text())["findings"].items())]

    def resets(self) -> int:
        return len(self.recorded())


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SickHost]:
    there = SickHost(tmp_path / "host", "t4", 2)
    yield there
    there.close()


def test_a_sick_gpu_is_reset_and_the_others_go_on(host: SickHost) -> None:
    host.serve(DCGM, 0, 1)
    host.told(1, ["persistence", True], ["power_limit", 65])
    host.found(host.sick())
    done = host.repair()
    assert done.get("applied") == ["repair/repair.reset/" + PLACES[0]], done
    (attempt,) = host.attempts()
    assert (attempt["rung"], attempt["end"], attempt["boot"]) == ("reset", "done", "one")
    assert attempt["parts"] == [{"key": "gpu " + host.uuids()[0], "serial": "1650", "address": PLACES[0]}]
    assert attempt["findings"] == ["gpu %s: xid 95" % host.uuids()[0]]
    assert [(each["who"], each["end"], each["gpus"]) for each in host.recorded()] == [
        ("repair", "done", host.uuids()[:1])]
    assert host.mended()[0].startswith("reset of " + PLACES[0]) and host.running() == [DCGM]
    assert host.told(1)["power_limit"] == 65
    assert host.repair()["applied"] == [], "it waits for a compute check"


def test_a_gpu_that_computes_wrongly_is_found_reset_and_found_to_be_well(host: SickHost) -> None:
    assert host.compute_and_look() == [[], []]
    host.fault("wrong-result", 0)
    assert host.compute_and_look() == [[["compute", "sick", "reset", host.uuids()[0]]], []]
    assert host.repair().get("applied") == ["repair/repair.reset/" + PLACES[0]]
    silicon.clear_faults(host.directory)
    (attempt,) = host.attempts()
    assert (attempt["rung"], attempt["end"], attempt["findings"]) == (
        "reset", "done", ["gpu %s: compute" % host.uuids()[0]])
    found, ((code, why),) = host.compute_and_look()
    assert found == [] and code == "compute" and why.endswith(", and a compute check that passed")
    assert host.repair()["applied"] == []


def test_a_gpu_that_goes_on_computing_wrongly_after_resets_gets_the_next_rung(host: SickHost) -> None:
    host.fault("wrong-result", 0)
    for _try in range(3):
        assert host.compute_and_look() == [[["compute", "sick", "reset", host.uuids()[0]]], []]
        host.repair()
    assert [each["rung"] for each in host.attempts()] == ["reset", "reset", "reboot"]


def test_what_the_driver_asks_for_no_more_once_nobody_has_the_gpu_is_spared(host: SickHost) -> None:
    host.serve(DCGM, 0)
    host.told(0, ["persistence", True], ["power_limit", 65])
    host.found(host.sick(code="recovery_action"))
    done = host.repair()
    assert done.get("applied") == ["repair/repair.reset/" + PLACES[0]], done
    assert [each["end"] for each in host.recorded()] == ["spared"] and host.calls("reset gpu=") == []
    (attempt,) = host.attempts()
    assert (attempt["end"], attempt["why"][:24]) == ("done", "the driver asked for no ")
    assert host.mended() == [], "it has ended, and nothing was done that mends anything else"
    assert host.running() == [DCGM] and host.told(0)["power_limit"] == 65


@pytest.mark.parametrize("others, action", [
    (["xid 95"], 0), ([], 3), ([], 4), (["slowdown"], 3)])
def test_what_is_still_asked_for_or_has_another_reason_is_not_spared(
    host: SickHost, others: List[str], action: int
) -> None:
    host.set("gpu.0.recovery_action", action)
    host.found(host.sick(code="recovery_action"), *(
        replace(host.sick(code=code), **({"kind": "warning", "remedy": ""} if code == "slowdown" else {}))
        for code in others))
    assert host.repair().get("applied") == ["repair/repair.reset/" + PLACES[0]]
    assert [each["end"] for each in host.recorded()] == ["done"] and len(host.calls("reset gpu=")) == 1


def test_what_is_refused_before_anything_is_touched_was_not_tried(host: SickHost) -> None:
    host.hold(0)
    host.found(host.sick())
    told = host.repair()
    assert told["error"]["code"] == "reset.in_use" and host.attempts() == [] and host.resets() == 0


def test_a_reset_that_fails_is_a_try_with_its_reason(host: SickHost) -> None:
    host.serve(DCGM, 0)
    (host.root / ("stuck-" + DCGM)).touch()
    host.found(host.sick())
    assert "error" in host.repair()
    (attempt,) = host.attempts()
    assert attempt["end"] == "failed" and DCGM in attempt["why"] and host.mended() == [""]


def test_a_reboot_is_written_down_and_left_to_others(host: SickHost) -> None:
    host.found(host.sick(code="xid 79", remedy="reboot"))
    done = host.repair()
    assert done.get("applied") == ["repair/repair.begin/reboot"], done
    assert [each["kind"] for each in done["plan"]["requirements"]] == ["reboot"]
    assert [(each["rung"], each["end"]) for each in host.attempts()] == [("reboot", "begun")]
    assert host.repair()["applied"] == [], "it is at hand"
    (host.root / "boot-id").write_text("two")
    assert host.repair()["applied"] == [], "nobody has looked since"


def test_what_is_beyond_repair_stays_so_after_a_boot_too(host: SickHost) -> None:
    """Nothing ends it but another part, or a person."""
    host.found(host.sick(code="xid 79", remedy="reboot"))
    part = Part("gpu " + host.uuids()[0])
    tried = [Attempt(number, "reboot", "before %d" % number, "", time.time() - 60, "ann", (part,), ())
             for number in (1, 2)]
    path = host.root / "var/lib/gpuops/repairs.json"
    path.write_text(json.dumps({"schema": 1, "attempts": [dict(asdict(each), end="done") for each in tried]}))
    done = host.repair()
    assert done.get("applied") == ["repair/repair.begin/out of gpu " + host.uuids()[0]], done
    kept = host.root / "run/gpuops/health.json"
    (finding,) = json.loads(kept.read_text())["findings"].values()
    assert (finding["remedy"], finding["mended"]) == ("out", "")


def test_a_load_is_given_up_and_another_one_left_to_activation(host: SickHost) -> None:
    """Where it is left undone the attempt stands and is no second one."""
    host.found(Finding(Subject(HOST), "nvml", "no_nvml", "sick", "reload", "no answer", BEGUN, BEGUN))
    done = host.repair()
    assert done.get("applied") == ["repair/repair.begin/reload"] and done["plan"]["requirements"] == [], done
    (attempt,) = host.attempts()
    assert (attempt["rung"], attempt["end"]) == ("reload", "begun")
    assert (host.root / "run/gpuops/given-up").read_text().strip() == attempt["load"] != ""
    assert host.repair()["applied"] == [] and len(host.attempts()) == 1


def test_what_is_not_allowed_is_put_off_and_not_written_down(host: SickHost) -> None:
    host.found(host.sick(), host.sick(1, "xid 79", "reboot"))
    done = host.repair(allowed="driver_reload")
    assert done["applied"] == [] and done["deferred"] == ["repair/repair.begin/reboot"]
    assert host.attempts() == [] and host.resets() == 0


def test_a_service_is_restarted_and_its_finding_waits_for_its_proof(host: SickHost) -> None:
    unit = "nvidia-fabricmanager.service"
    host.found(Finding(Subject(HOST), "service", unit, "sick", "service", "it is inactive", BEGUN, BEGUN))
    assert host.repair()["applied"] == ["repair/repair.restart/" + unit]
    assert [(each["rung"], each["end"]) for each in host.attempts()] == [("service", "done")]
    assert host.mended()[0].startswith("service of " + unit)


def test_a_damaged_record_stops_the_repair(host: SickHost) -> None:
    host.found(host.sick())
    (host.root / "var/lib/gpuops/repairs.json").write_text("{")
    assert host.repair()["error"]["code"] == "repair.record_damaged" and host.resets() == 0


@pytest.mark.parametrize("has_agent", [False, True], ids=["no agent", "an agent"])
def test_where_nobody_repairs_any_more_what_was_tried_goes_and_findings_are_the_agents(
    host: SickHost, has_agent: bool
) -> None:
    host.found(host.sick())
    host.repair()
    if has_agent:
        (host.root / "etc/gpuops").mkdir(parents=True)
        (host.root / AGENTS.lstrip("/")).write_text("{}")
    applied = host.repair(state="absent")["applied"]
    assert applied == ["repair/repair.forget/attempts", "repair/repair.forget/findings"][:1 if has_agent else 2]
    left = {path.name for path in host.root.rglob("*") if path.name in ("health.json", "repairs.json", "summary.json")}
    assert left == ({"health.json", "summary.json"} if has_agent else set())
    assert host.repair(state="absent")["applied"] == []


def test_what_the_driver_logs_while_daemons_come_back_is_not_mended_by_the_reset_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "3,%d,%d,-;NVRM: Xid (PCI:0000:17:00): %d, pid=7, name=a, said by the driver\n"
    (tmp_path / "dev").mkdir()
    log = tmp_path / "dev/kmsg"
    log.write_text("3,0,1,-;Linux version 6.12\n" + line % (1, 2, 119))
    there, policy = Host(str(tmp_path)), Policy()
    look_and_keep(there, policy.health)

    def reset(_host: Host, _journal: Journal, _act: Any, prepare: Any, ended: Any) -> bool:
        prepare()
        ended()
        with log.open("a") as text:
            text.write(line % (2, 3, 48))
        return True

    monkeypatch.setattr(executors, "reset", reset)
    step = Step("repair", planner.RESETS, PLACES[0], "sick", Disruption.gpu_reset, parameters={
        "rung": "reset", "parts": [["gpu " + PLACES[0], "", PLACES[0]]], "gpus": [["GPU-1", PLACES[0]]],
        "divided": False})
    executors.executors_of(policy)[planner.RESETS](there, Journal(there), step)
    mended = {each.code: bool(each.mended) for each in look_and_keep(there, policy.health).findings.values()}
    assert mended == {"xid 119": True, "xid 48": False}


@every_part
def test_killed_before_any_act_what_was_tried_is_known_and_all_comes_back(
    host: SickHost, tmp_path: Path, part: int
) -> None:
    host.serve(PERSISTENCED, 0, 1)
    host.serve(DCGM, 0, 1)
    host.found(host.sick())
    start = tmp_path / "start"
    host.saved(start)
    acts = host.repair()["acts"]
    running = host.running()
    assert acts > 15 and len(running) == 2
    for kill in range(1 + part, acts + 1, PARTS):
        host.loaded(start)
        assert host.repair(kill=kill) == {"killed": True}
        assert len(host.attempts()) >= host.resets(), "%d: a reset that is no attempt" % kill
        again = host.repair()
        assert "error" not in again, (kill, again)
        assert host.mended()[0].startswith("reset of "), kill
        assert 1 <= len(host.attempts()) <= 2 and host.attempts()[-1]["end"] in ("done", "begun"), kill
        assert (host.running(), host.memory("reset").get("act")) == (running, None), kill
        assert host.repair()["applied"] == [], kill
