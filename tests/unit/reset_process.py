# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Carries out on a scratch root what reset_host.py tells it, each time in a child; argv[1]: the driver's version."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any, Callable, Dict, Sequence

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandFailed, CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, render
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import nvml, reset
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml_settings import REQUESTS
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.pci import read_bus
from ansible_collections.gpuops.nvidia.plugins.module_utils.repair.capability import CAPABILITY as REPAIR
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.capability import CAPABILITY as SETTINGS

READING = ("get", "links")
KILLED = 9


class Acts:
    """kill: the act, counted from 1, before which the process dies; 0 for none."""

    def __init__(self, kill: int) -> None:
        self.kill, self.done = kill, 0

    def begin(self) -> None:
        self.done += 1
        if self.done == self.kill:
            os._exit(KILLED)


class ScratchHost(Host):
    def __init__(self, root: str, acts: Acts) -> None:
        super().__init__(root)
        self.acts = acts

    def boot(self) -> str:
        return self.read("/boot-id") or "one"

    def _replace(self, *words: Any) -> None:
        self.acts.begin()
        super()._replace(*words)

    def append(self, *words: Any, **more: Any) -> None:
        self.acts.begin()
        super().append(*words, **more)

    def run(self, argv: Sequence[str], check: bool = True, **how: Any) -> CommandResult:
        if argv[0] == "systemctl":
            return self._systemctl(argv[1:])
        if argv[0] != "nvidia-smi":
            return super().run(argv, check, **how)
        self.acts.begin()
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return CommandResult(tuple(argv), done.returncode, done.stdout, "")

    def _systemctl(self, words: Sequence[str]) -> CommandResult:
        unit = next(word for word in words[1:] if word.endswith(".service"))
        if words[0] not in ("show", "reset-failed"):
            self.acts.begin()
        if words[0] in ("enable", "disable"):
            link = "/etc/systemd/system/multi-user.target.wants/" + unit
            self.write(link, "") if words[0] == "enable" else self.remove(link)
        elif words[0] == "restart":
            script = self.read("/var/lib/gpuops/%s-restore" % ("mig" if "mig" in unit else "settings")) or ""
            for path in ("/run/gpuops", "/sys/module/nvidia"):
                script = script.replace(path, self.root + path)
            subprocess.run(["/bin/sh", "-c", script], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        elif words[0] in ("start", "stop"):
            self._service(words[0], unit)
        units = json.loads(self.read("/units.json") or "{}")
        active = unit in units and self.exists("/proc/%d" % units[unit]["pid"])
        state = "active" if active else "inactive"
        return CommandResult(tuple(words), 0, "LoadState=loaded\nActiveState=%s\n" % state, "")

    def _service(self, verb: str, unit: str) -> None:
        """One with a file STUCK neither stops nor starts."""
        service = json.loads(self.read("/units.json") or "{}").get(unit)
        process = self.path("/proc/%d" % service["pid"])
        if self.exists("/stuck-" + unit):
            raise CommandFailed("host.command_failed", found="%s does not %s" % (unit, verb), wanted="-", remedy="-")
        if verb == "stop":
            shutil.rmtree(process, ignore_errors=True)
        elif not os.path.isdir(process):
            os.makedirs(process + "/fd")
            for gpu in service["gpus"]:
                os.symlink("/dev/nvidia%d" % gpu, "%s/fd/%d" % (process, gpu + 3))
            for name, text in (("cgroup", "0::/system.slice/%s\n" % unit), ("comm", unit.split(".")[0] + "\n")):
                with open("%s/%s" % (process, name), "w", encoding="utf-8") as file:
                    file.write(text)
        if unit == "nvidia-persistenced.service":
            # What it keeps, it keeps by persistence mode
            subprocess.run(["nvidia-smi", "-pm", "1" if verb == "start" else "0"], check=False,
                           stdout=subprocess.DEVNULL)


def counted(acts: Acts) -> Callable[..., Any]:
    ask = nvml.Session.ask

    def asked(session: nvml.Session, name: str, *words: Any) -> Any:
        if name not in READING:
            acts.begin()
        return ask(session, name, *words)

    return asked


def answer(version: str, asked: Dict[str, Any]) -> Dict[str, Any]:
    acts = Acts(asked.get("kill", 0))
    host = ScratchHost(asked["root"], acts)
    if asked["do"] == "systemctl":
        host.systemctl(*asked["words"])
        return {}
    if asked["do"] == "nvml":
        session = nvml.Session(REQUESTS)
        for name, value in asked["changes"]:
            session.ask(name, asked["uuid"], value)
        told: Dict[str, Any] = session.ask("get", asked["uuid"])
        session.close()
        return told
    nvml.Session.ask = counted(acts)  # type: ignore[method-assign]
    try:
        done = _done(version, host, asked)
    except GpuOpsError as error:
        done = {"error": error.result()}
    return {**done, "acts": acts.done}


def _done(version: str, host: Host, asked: Dict[str, Any]) -> Dict[str, Any]:
    if asked["do"] == "reset":
        act = reset.Act("repair", "a test", tuple((uuid, address) for uuid, address in asked["gpus"]))
        reset.reset(host, Journal(host), act)
        return {}
    facts = HostFacts(hostname="gpu", driver_userspace=version, driver_loaded=version, driver_installed=version,
                      gpus=tuple(Gpu(device.address, device.device_id) for device in read_bus(host).gpus))
    capability = {each.name: each for each in (SETTINGS, REPAIR)}[asked.get("capability", "settings")]
    checked = ArgumentSpecValidator(dict(capability.arguments)).validate(asked["parameters"])
    assert not checked.error_messages, checked.error_messages
    run = Run(capability, checked.validated_parameters, host, lambda _host: facts,
              Disruption[asked.get("allowed", "reboot")],
              Plan.from_dict(asked["approved"]) if asked.get("approved") else None)
    outcome = run.preview() if asked["do"] == "plan" else run.apply()
    return {"applied": outcome.applied, "deferred": [step.id for step in outcome.deferred],
            "text": render(outcome.plan), "plan": outcome.plan.to_dict()}


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ["GPUSIM_DIR"] = asked["board"]
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receiver)
            with os.fdopen(sender, "w") as out:
                json.dump(answer(sys.argv[1], asked), out)
            os._exit(0)
        os.close(sender)
        with os.fdopen(receiver) as said:
            text = said.read()
        _pid, status = os.waitpid(child, 0)
        print(text if os.WEXITSTATUS(status) == 0 else json.dumps({"killed": True}), flush=True)


main()
