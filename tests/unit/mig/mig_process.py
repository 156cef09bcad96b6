# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plans and applies MIG on a scratch root, as it is told line by line.

A process of its own, as the library is chosen at its start. systemctl and nvidia-modprobe have a host as their subject,
and so are answered here.

Started by mig_host.py: argv[1] is the root, which is the simulated board's directory too.
"""
from __future__ import annotations

import json
import os
import re
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
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step, render
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.pci import read_bus
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig import boot, executors
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.capability import CAPABILITY

PIDS = {"dcgm-exporter.service": 91, "nvidia-dcgm.service": 92}
MINOR = re.compile(r"^DeviceFileMinor: (\d+)", re.MULTILINE)


class ScratchHost(Host):
    def run(self, argv: Sequence[str], **how: Any) -> CommandResult:
        if argv[0] == "nvidia-modprobe":
            found = MINOR.search(self.read(argv[2]) or "")
            if found:
                self.write("/dev/nvidia-caps/nvidia-cap" + found.group(1), "")
            return CommandResult(tuple(argv), 0 if found else 1, "", "")
        if argv[0] == "nvidia-smi":
            done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            return CommandResult(tuple(argv), done.returncode, done.stdout, "")
        if argv[0] == "systemctl" and argv[1] in ("start", "stop", "show", "reset-failed"):
            return self._service(argv)
        if argv[0] == "systemctl":
            link = boot.WANTS.replace(boot.UNIT, argv[-1])
            self.write(link, "") if argv[1] == "enable" else self.remove(link)
            return CommandResult(tuple(argv), 0, "", "")
        return super().run(argv, **how)

    def _service(self, argv: Sequence[str]) -> CommandResult:
        """A watcher is a process that has the first GPU open: /proc/PID. One with a file STUCK cannot be stopped."""
        unit = next(word for word in argv[2:] if word.endswith(".service"))
        process, stuck = self.path("/proc/%d" % PIDS.get(unit, 99)), self.path("/stuck-" + unit)
        if argv[1] == "stop":
            if os.path.exists(stuck):
                raise CommandFailed("host.command_failed", found="%s does not stop" % unit, wanted="-", remedy="-")
            shutil.rmtree(process)
        elif argv[1] == "start" and not os.path.isdir(process):
            os.makedirs(process + "/fd")
            os.symlink("/dev/nvidia0", process + "/fd/3")
            self.write("/proc/%d/cgroup" % PIDS[unit], "0::/system.slice/%s\n" % unit)
        state = "active" if os.path.isdir(process) else "inactive"
        return CommandResult(tuple(argv), 0, "LoadState=loaded\nActiveState=%s\n" % state, "")


def main() -> None:
    host, version = ScratchHost(sys.argv[1]), sys.argv[2]
    facts = HostFacts(hostname="gpu", driver_userspace=version, driver_loaded=version,
                      gpus=tuple(Gpu(device.address, device.device_id) for device in read_bus(host).gpus))
    for line in sys.stdin:
        nvml.forget()
        print(json.dumps(answer(host, facts, json.loads(line))), flush=True)


def with_another(ask: Callable[..., Any], argv: Sequence[str]) -> Callable[..., Any]:
    """Another program runs just before our first instance is created."""
    waiting = [argv]

    def asked(session: nvml.Session, name: str, *words: Any) -> Any:
        if name == "create" and waiting:
            subprocess.run(waiting.pop(), check=True, stdout=subprocess.DEVNULL)
        return ask(session, name, *words)

    return asked


def answer(host: Host, facts: HostFacts, asked: Dict[str, Any]) -> Dict[str, Any]:
    if asked["do"] == "read":
        reading = nvml.reading_of(facts.driver_userspace, facts.driver_loaded)
        return {"gpus": [gpu.mig and gpu.mig.to_dict() for gpu in reading.gpus]}
    if asked["do"] == "step":
        step = Step.from_dict(asked["step"])
        ask = nvml.Session.ask
        if "meanwhile" in asked:
            nvml.Session.ask = with_another(ask, asked["meanwhile"])  # type: ignore[method-assign]
        try:
            executors.EXECUTORS[step.action](host, Journal(host), step)
            return {}
        except GpuOpsError as error:
            return {"error": error.result()}
        finally:
            nvml.Session.ask = ask  # type: ignore[method-assign]
            executors.close_session()
    checked = ArgumentSpecValidator(dict(CAPABILITY.arguments)).validate(asked["parameters"])
    assert not checked.error_messages, checked.error_messages
    run = Run(CAPABILITY, checked.validated_parameters, host, lambda _host: facts)
    try:
        outcome = run.preview() if asked["do"] == "plan" else run.apply()
        return {"applied": outcome.applied, "text": render(outcome.plan), "plan": outcome.plan.to_dict()}
    except GpuOpsError as error:
        return {"error": error.result()}
    finally:
        executors.close_session()


main()
