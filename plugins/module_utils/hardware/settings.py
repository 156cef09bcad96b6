# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The unit that sets GPUs up again, by name: who loads a driver or resets a GPU has it run once more."""
from __future__ import annotations

from ..core.host import Host

SETTINGS_UNIT = "gpuops-nvidia-settings.service"
SETTINGS_UNIT_FILE = "/etc/systemd/system/" + SETTINGS_UNIT


def set_up_again(host: Host) -> None:
    """After a reset, or a load of the driver; nothing where no GPU has settings. Of what fails the journal tells."""
    if host.exists(SETTINGS_UNIT_FILE):
        host.run(["systemctl", "restart", SETTINGS_UNIT], check=False, timeout=150)
