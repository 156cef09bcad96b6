# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The activation's own actions. What a crash must not lose (services stopped, modules unloaded) is noted before."""
from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Dict, Tuple

from ..core import interrupted
from ..core.errors import GpuOpsError
from ..core.host import CommandFailed, Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.refusal import Refusal
from ..core.steps import Executor, control_service, restore_file, run_argv
from ..core.waiting import wait_for
from ..hardware.driver_container import ROOT, read_driver_container, refusal_of_work
from ..hardware.mig import RESTORE_UNIT, RESTORE_WANTED
from ..hardware.parameters import stale_parameters
from ..hardware.settings import set_up_again
from .observation import UNLOAD_ORDER
from .planner import DIVIDE, FORGET, NAME, REMOVE_NODES, UNMOUNT

UNLOAD_SECONDS = 10.0
PAUSE_SECONDS = 2.0
MOUNT_S = 60.0
# The unit's own limit, and some more
LAYOUT_S = 200.0

# What the kernel and kmod say when a module is not loaded; to what is found their own words are added.
_LOADED = "the module loaded"
LOAD_ERRORS: Tuple[Tuple[str, Refusal], ...] = (
    ("Key was rejected by service|Required key not available|unavailable key", Refusal(
        "activation.module_not_trusted",
        "Secure Boot is on and the module's signature is by no enrolled key", _LOADED,
        "enrol the key (`mokutil --import /var/lib/dkms/mok.pub`, confirm at the console), or use signed modules")),
    ("No such device", Refusal(
        "activation.no_gpu_for_module",
        "the module supports no GPU of this host, or another driver is bound to it", _LOADED,
        "see `dmesg`; check the driver's `kernel_module` (open or proprietary), nouveau and vfio-pci")),
    ("disagrees about version of symbol|Exec format error|Unknown symbol", Refusal(
        "activation.module_of_another_build",
        "the module was built for another kernel, or for another version of the driver", _LOADED,
        "rebuild it (`dkms build --force` and `dkms install --force`, with `-k $(uname -r)`), or boot the kernel that "
        "it was built for")),
    ("not found in directory", Refusal(
        "activation.no_module",
        "there is no module for the running kernel", _LOADED,
        "run `gpu_driver`: it builds the module for every kernel that can be booted")),
    ("Device or resource busy", Refusal(
        "activation.gpus_busy",
        "something else holds the GPUs", _LOADED,
        "see `dmesg` for the driver that claimed them")),
)


def load_module(host: Host, journal: Journal, step: Step) -> None:
    try:
        run_argv(host, journal, step)
    except CommandFailed as failure:
        said = str(failure.details.get("stderr", ""))
        for words, refusal in LOAD_ERRORS:
            if re.search(words, said):
                found = "module %s: %s: %s" % (step.subject, refusal.found, said.strip())
                raise GpuOpsError.because([replace(refusal, found=found)], **failure.details) from failure
        raise
    interrupted.forget(host, journal, NAME, interrupted.UNLOADED, step.subject)
    if step.subject == UNLOAD_ORDER[-1]:
        set_up_again(host)
    # What a module reports otherwise although it has just been loaded with it, no further load would change
    for each in stale_parameters(host):
        if each.split(".")[0] == step.subject:
            interrupted.note(host, journal, NAME, interrupted.LOADED_WITH, each)


def unload_module(host: Host, journal: Journal, step: Step) -> None:
    """Remove a module; a service that has just been stopped may need a moment to let go."""
    interrupted.note(host, journal, NAME, interrupted.UNLOADED, step.subject)
    if step.subject == UNLOAD_ORDER[-1] and host.exists(RESTORE_WANTED):
        interrupted.note(host, journal, NAME, interrupted.UNDIVIDED, RESTORE_UNIT)
    done, gone = wait_for(
        lambda: host.run(step.parameters["argv"], check=False, timeout=step.parameters["timeout"]),
        lambda done: done.rc == 0 or not host.exists("/sys/module/" + step.subject), UNLOAD_SECONDS, PAUSE_SECONDS)
    if gone:
        return
    raise GpuOpsError(
        "activation.module_not_unloaded",
        found="module %s cannot be unloaded: %s" % (step.subject, done.stderr.strip()),
        wanted="the module gone, so that the installed one can be loaded",
        remedy="run the module again to see who holds it, or reboot the host",
        rc=done.rc, stderr=done.stderr)


def remove_nodes(host: Host, journal: Journal, step: Step) -> None:
    for node in step.change["before"]:
        host.remove(node)
        if os.path.dirname(node) != "/dev":
            host.remove_empty_dir(os.path.dirname(node))


def unmount_container(host: Host, journal: Journal, step: Step) -> None:
    """With all that is mounted below it. Each start of a container that was killed before has mounted one more."""
    container = read_driver_container(host)
    if container.is_at_work:
        raise GpuOpsError.because([refusal_of_work(container)])
    while container.mounted:
        # As the container itself does: its program may be somebody's working directory, and its files are open
        done = host.run(["umount", "--lazy", "--recursive", ROOT], check=False, timeout=MOUNT_S)
        container = read_driver_container(host)
        if done.rc != 0 and container.mounted:
            raise GpuOpsError(
                "activation.driver_container_mounted",
                found="the file system of a driver container stays at %s: %s" % (ROOT, done.stderr.strip()),
                wanted="nothing mounted there, so that nobody takes it for the driver",
                remedy="see `findmnt -R %s`, unmount it by hand and run this again, or reboot the host" % ROOT,
                rc=done.rc, stderr=done.stderr)


def forget_container(host: Host, journal: Journal, step: Step) -> None:
    for path in step.change["before"]:
        host.remove(path)


def enable_service(host: Host, journal: Journal, step: Step) -> None:
    interrupted.note(host, journal, NAME, "enabled", step.subject)
    control_service(host, journal, step)


def disable_service(host: Host, journal: Journal, step: Step) -> None:
    control_service(host, journal, step)
    interrupted.forget(host, journal, NAME, "enabled", step.subject)


def restore_and_forget(host: Host, journal: Journal, step: Step) -> None:
    restore_file(host, journal, step)
    interrupted.forget_all(host, journal, NAME)


def restore_layout(host: Host, journal: Journal, step: Step) -> None:
    """A profile that the new driver does not have is the next plan's matter, which compares what there is then."""
    host.run(["systemctl", "restart", step.subject], check=False, timeout=LAYOUT_S)
    interrupted.forget(host, journal, NAME, interrupted.UNDIVIDED, step.subject)


EXECUTORS: Dict[str, Executor] = {
    "module.load": load_module,
    DIVIDE: restore_layout,
    "module.unload": unload_module,
    "devices.create": run_argv,
    REMOVE_NODES: remove_nodes,
    UNMOUNT: unmount_container,
    "firmware.reset": run_argv,
    FORGET: forget_container,
    "service.stop": interrupted.stop_service,
    "service.start": interrupted.start_service,
    "service.enable": enable_service,
    "service.disable": disable_service,
    "file.restore": restore_and_forget,
}
