# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the command says to people: results as text. Pure."""
from __future__ import annotations

import time
from typing import Any, Dict, Iterator, List, Mapping

from ..core.boot_record import LATE, NO_GPUS, VALIDATED
from ..core.plan import Step
from ..core.progress import duration
from ..hardware.recovery import REMEDIES

Result = Mapping[str, Any]


def info(result: Result) -> str:
    observation = result["observation"]
    facts, gpus = observation["host"], observation["nvml"]["gpus"]
    lines = ["%s: %s %s, kernel %s, driver %s" % (
        facts["hostname"], facts["os_id"], facts["os_version"], facts["kernel"], _driver(facts))]
    known = {gpu["pci_address"]: gpu for gpu in gpus}
    for device in observation["pci"]["gpus"]:
        lines.append("  %s" % _gpu(device, known.get(device["address"])))
    if observation["nvml"]["error"]:
        lines.append("  NVML: %s" % observation["nvml"]["error"])
    lines += ["  %s: %s" % (name, state) for name, state in observation["services"].items() if state != "not-found"]
    lines += ["  kernel log: %s" % _error(error) for error in observation["kernel_log"]["errors"]]
    return "\n".join(lines)


def _driver(facts: Mapping[str, Any]) -> str:
    loaded, installed = facts["driver_loaded"], facts["driver_installed"]
    if loaded == installed:
        return loaded or "none"
    return "%s loaded, %s installed" % (loaded or "none", installed or "none")


def _gpu(device: Mapping[str, Any], answer: Any) -> str:
    if answer is None:
        return "%s [10de:%s]: no answer" % (device["address"], device["device_id"])
    mig = answer["mig"]
    divided = "%d MIG devices" % len(_devices(mig)) if mig and mig["current"] else ""
    return ", ".join(filter(None, (
        "GPU %d (%s): %s" % (answer["index"], device["address"], answer["error"] or answer["name"]),
        answer["uuid"], divided)))


def _devices(mig: Mapping[str, Any]) -> List[Any]:
    return [compute for instance in mig["instances"] for compute in instance["compute"]]


def _error(error: Mapping[str, Any]) -> str:
    name = "Xid %s" % error["xid"] if error["xid"] is not None else "SXid %s" % error["sxid"]
    cause = ", caused by Xid %d" % error["caused_by"] if error["caused_by"] else ""
    return "%s %s: %s (%d times)%s" % (
        error["uuid"] or error["pci_address"], name, error["meaning"], error["count"], cause)


def plan(result: Result) -> str:
    """As the module's own text, and what is not done of it."""
    lines = [result["text"]]
    lines += ["not done: %s (%s); --allowed-disruption %s lets it" % (
        part["id"], part["why"], part["disruption"]) for part in result["deferred"]]
    return "\n".join(lines)


def apply(result: Result) -> str:
    lines = ["waited for another run: %s" % result["waited_for"]] if result["waited_for"] else []
    lines += ["done: %s" % step for step in result["applied"]] or ["nothing was to be done"]
    lines += ["not done: %s (%s); --allowed-disruption %s lets it" % (
        step["id"], step["why"], step["disruption"]) for step in result["deferred"]]
    lines += ["left to the next plan, as nothing of it could be planned yet: %s" % name for name in result["waiting"]]
    if result["reboot_required"]:
        lines += ["then: reboot this host; %s" % requirement["why"] for requirement in result["requirements"]]
    return "\n".join(lines)


def boot(result: Result) -> str:
    """The last line is what somebody before the console is to see."""
    lines = [*("done: %s" % step for step in result["applied"]), *_checks(result["checks"])]
    return "\n".join([*lines, "gpuops: %s" % _STATES[result["state"]]])


_STATES = {VALIDATED: "this host may take GPU work", NO_GPUS: "this host has no GPU, and needs nothing",
           LATE: "a kubelet has run since the boot, and nothing was done under its pods"}


def health(result: Result) -> str:
    """The verdict, then what there is, the worst first."""
    lines = ["%s%s" % (result["verdict"], "; to do: %s" % REMEDIES[result["remedy"]] if result["remedy"] else "")]
    lines += list(map(_finding, result["findings"]))
    lines += ["unknown  %s since %s: %s" % (each["what"], _time(each["since"]), each["text"])
              for each in result["unknown"]]
    return "\n".join(lines)


def node(result: Result) -> str:
    if "node" not in result:
        return "nothing is told: the policy has node_condition none"
    lines = ["node %s: %s%s" % (result["node"], "told" if result["changed"] else "it says so already",
                                ", cordoned by this host" if result["cordoned"] else "")]
    return "\n".join([*lines, *("%-16s %-8s %s" % (each["type"], each["status"], each["message"])
                                for each in result["conditions"])])


def _finding(finding: Mapping[str, Any]) -> str:
    todo = finding["to_do"] or ("a compute check: gpuops validate --compute %s" % finding["check"]
                                if finding["check"] else "")
    return "%-8s %s: %s (%d times, since %s)%s" % (
        finding["kind"], finding["key"], finding["text"], finding["count"], _time(finding["first"]),
        "; do: %s" % todo if todo else "")


def validate(result: Result) -> str:
    return "\n".join(_checks(result.get("checks") or ()))


def _checks(checks: Any) -> Iterator[str]:
    for check in checks:
        yield "%-8s %s: %s" % (check["status"], check["name"], check["evidence"])
        if check["remedy"]:
            yield "         do: %s" % check["remedy"]


def failed(result: Result) -> List[str]:
    """What was seen, and what was done, before it failed."""
    return [*_checks(result.get("checks") or ()), *("done: %s" % step for step in result.get("applied") or ())]


def history(result: Result) -> str:
    """A line an event; a step that ended tells how long it took."""
    begun: Dict[str, float] = {}
    lines = []
    for event in result["events"]:
        step, at = event["step"], event["time"]
        if event["event"] == "started":
            begun[step["id"]] = at
        since = begun.pop(step["id"], None) if event["event"] != "started" else None
        took = " in %s" % duration(at - since) if since is not None and not event.get("late") else ""
        why = ": %s" % event["error"] if event.get("error") else ""
        lines.append("%s  %-10s %s %s %s%s%s" % (
            _time(at), event["event"], step["capability"], step["action"], step["subject"], took, why))
    return "\n".join(lines) or "nothing was done on this host yet"


def step(step: Step, number: int, total: int) -> str:
    return "step %d of %d: [%s] %s %s" % (number, total, step.disruption.name, step.action, step.subject)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
