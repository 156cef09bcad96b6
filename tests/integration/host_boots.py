# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Cuts a node's power, at work and while it boots, and sees what the node makes of it by itself: no controller runs.

The node has MIG instances, settings, and a kubelet that is held until the node is validated. Its disk loses what nobody
has synced.
"""
from __future__ import annotations

import json
import random
import time
from typing import Any, Dict, List

from laboratory import Fleet

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.waiting import wait_for
from gpulab.topology import Topology, parse

BOARD, GPUS = "h100-sxm-hgx", 2
POWER = 450
POLICY: Dict[str, Any] = {
    "node_agent_state": "present", "node_agent_boot": "hold", "gpu_validation_expected_gpus": GPUS,
    "mig_config": "all-balanced", "gpu_settings_gpus": [{"match": ["all"], "power_limit": POWER}]}
UNIT, KUBELET = "gpuops-nvidia-boot.service", "kubelet.service"
# What the node is at when its power goes: a command of its own, or nothing but its pods
AT_WORK = ("", "gpuops health", "gpuops validate", "gpuops apply")
# How often the power goes again while it boots
AGAIN = (0, 0, 1, 2)
BOOT_SECONDS, NODE_SECONDS = 300, 180


def topology(host: str) -> Topology:
    return parse({"name": "boots", "control_plane": True, "hosts": [
        {"name": host, "board": BOARD, "gpus": GPUS, "disk": True}]}, __file__)


class Bed:
    """A node, installed once."""

    def __init__(self, fleet: Fleet, host: str) -> None:
        self.fleet, self.host = fleet, host
        self.wanted: Dict[str, Any] = {}
        self.pace = 0.0

    def deliver(self) -> None:
        self.fleet.play("gpuops.nvidia.site", **POLICY)
        self.fleet.say(self.host, "sync")
        self.wanted = self.seen()
        self.fleet.lab.kill(self.host)
        started = time.monotonic()
        self.fleet.lab.start(self.host)
        self.come_back()
        self.pace = time.monotonic() - started

    def renew(self) -> None:
        """After a failure: a node as it is delivered."""
        self.fleet.lab.reset(self.host)
        self.deliver()

    def cut(self, seed: int) -> List[str]:
        """What was cut, in words. Raises AssertionError where the node does not come back as it was."""
        dice = random.Random(seed)
        work = dice.choice(AT_WORK)
        if work:
            self.fleet.say(self.host, "sh", "-c", "setsid %s >/dev/null 2>&1 &" % work)
        seconds = dice.uniform(0, 5)
        time.sleep(seconds)
        self.fleet.lab.kill(self.host)
        told = ["%.1f s after it began %s" % (seconds, work or "nothing")]
        for _again in range(dice.choice(AGAIN)):
            seconds = dice.uniform(0, self.pace)
            self.fleet.lab.host(self.host).start()
            time.sleep(seconds)
            self.fleet.lab.kill(self.host)
            told.append("%.1f s after it was turned on" % seconds)
        self.fleet.lab.start(self.host)
        try:
            self.come_back()
        except AssertionError as error:
            raise AssertionError("cut %s: %s" % (", then ".join(told), error)) from error
        return ["cut " + ", then ".join(told)]

    def come_back(self) -> None:
        """The node is validated before its kubelet takes pods, and offers what it did."""
        told, ended = wait_for(self.boot, lambda told: told["unit"] in ("active", "failed"), BOOT_SECONDS, 0.5)
        assert ended and told["state"] == "validated", (told, self.journal())
        told, ended = wait_for(self.boot, lambda told: told["kubelet"] == "active", BOOT_SECONDS, 0.5)
        assert ended, (told, self.journal())
        assert self.entered(UNIT) <= self.entered(KUBELET), told
        seen, same = wait_for(self.seen, lambda seen: seen == self.wanted, NODE_SECONDS, 1)
        assert same, (seen, self.wanted)
        plan = json.loads(self.fleet.say(self.host, "gpuops", "plan", "--json"))
        assert plan.get("converged") and plan["plan"]["steps"] == [], plan
        checked = json.loads(self.fleet.say(self.host, "gpuops", "validate", "--json"))
        assert not checked.get("failed"), checked

    def boot(self) -> Dict[str, Any]:
        say = self.fleet.say
        unit = say(self.host, "systemctl", "is-active", UNIT)
        # Later than its unit, which says last that it has ended
        record = json.loads(say(self.host, "cat", "/run/gpuops/boot.json") or "{}")
        return {"unit": unit, "state": record.get("state", ""), "reason": record.get("reason", ""),
                "kubelet": say(self.host, "systemctl", "is-active", KUBELET)}

    def journal(self) -> str:
        return self.fleet.say(self.host, "journalctl", "-b", "--no-pager", "-u", UNIT)

    def entered(self, unit: str) -> int:
        return int(self.fleet.say(
            self.host, "systemctl", "show", "--value", "-p", "ActiveEnterTimestampMonotonic", unit))

    def seen(self) -> Dict[str, Any]:
        """What a boot may lose."""
        status = self.fleet.node(self.host)["status"]
        ready = [each["status"] for each in status["conditions"] if each["type"] == "Ready"]
        smi = ("nvidia-smi", "--query-gpu=power.limit,persistence_mode", "--format=csv,noheader")
        instances = self.fleet.say(self.host, "nvidia-smi", "mig", "-lgi").splitlines()
        return {
            "ready": ready,
            "offered": {name: count for name, count in status["allocatable"].items()
                        if name.startswith("nvidia.com/") and count != "0"},
            "settings": self.fleet.say(self.host, *smi).splitlines(),
            "instances": [" ".join(line.strip("|").split()) for line in instances if "MIG" in line],
        }
