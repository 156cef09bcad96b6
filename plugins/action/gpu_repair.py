# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from ..plugin_utils.capability_action import CapabilityAction


class ActionModule(CapabilityAction):
    """Runs the module of the same name with the libraries that it needs."""
