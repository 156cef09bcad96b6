# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a boot has to do again: /dev and /var/run are empty then, and driver or MIG layout may be others. Pure.

The unit runs before the container runtimes, whatever the toolkit's own does: that one runs after multi-user.target in
toolkits 1.18 to 1.20.0, in no order at all in later ones, and never where the module is called nvidia-current-open, as
Debian's is (deployments/systemd of NVIDIA/nvidia-container-toolkit). Both have one file, one environment and one
program, which replaces the file at once. Nothing requires our unit, and its time is bounded: a node whose GPUs hang
boots without a specification. A udev rule starts it once more when the driver is loaded by another hand;
it waits for the last of its modules, as the links need the major of nvidia-uvm. Neither needs a reload of systemd: a
boot reads the unit, and udev looks at its directories itself.
"""
from __future__ import annotations

from ..core.runtimes import KNOWN_RUNTIMES
from ..core.steps import managed
from . import links
from .spec import PATH

UNIT = "gpuops-nvidia-cdi.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
WANTS = "/etc/systemd/system/multi-user.target.wants/" + UNIT
RULE_FILE = "/etc/udev/rules.d/71-gpuops-nvidia.rules"

RULE = managed(
    'ACTION=="add", SUBSYSTEM=="module", KERNEL=="nvidia_uvm", TAG+="systemd", ENV{SYSTEMD_WANTS}+="%s"\n' % UNIT
)


# What the toolkit's unit and ours write, by the name that its environment has for it
OUTPUT = "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"
REFRESH_SERVICE = "nvidia-cdi-refresh.service"
REFRESH_ENVIRONMENT = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
AFTER = ("systemd-modules-load.service", "gpuops-nvidia-devices.service", "nvidia-mig-manager.service")
BEFORE = (REFRESH_SERVICE, *(unit for runtime in KNOWN_RUNTIMES for unit in runtime.units), "kubelet.service")


def unit_text(generator: str, generates: bool, with_links: bool) -> str:
    """The unit. generator: path of nvidia-ctk; generates: whether it writes the specification."""
    lines = [
        "[Unit]",
        "Description=CDI specification and /dev/char links of NVIDIA GPUs",
        "After=" + " ".join(AFTER),
        "Before=" + " ".join(BEFORE),
        "ConditionPathExists=/proc/driver/nvidia/version",
        # A process that hangs in the driver outlives every signal, and what comes after must not wait for it
        "JobRunningTimeoutSec=120s",
        "",
        "[Service]",
        "Type=oneshot",
        "TimeoutStartSec=90s",
        "TimeoutStopSec=10s",
    ]
    if with_links:
        # What follows is worth more than the links
        lines += ["ExecStart=%s%s --quiet %s" % ("-" if generates else "", generator, " ".join(command))
                  for command in (links.COMMAND, links.COMMAND_FOR_EXISTING)]
    if generates:
        # What is generated names the nodes that are there: nvidia-smi makes those of GPUs and MIG devices
        lines += [
            "Environment=%s=%s" % (OUTPUT, PATH),
            "EnvironmentFile=-%s" % REFRESH_ENVIRONMENT,
            "ExecStart=-/usr/bin/nvidia-smi -L",
            "ExecStart=-%s --quiet system create-device-nodes --control-devices" % generator,
            # Toolkits before 1.18 do not read the variable themselves
            "ExecStart=%s --quiet cdi generate --output=${%s}" % (generator, OUTPUT),
        ]
    return managed("\n".join(lines) + "\n\n[Install]\nWantedBy=multi-user.target\n")
