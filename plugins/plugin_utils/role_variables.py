# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which variables of which role the options of a module are."""
from __future__ import annotations

from dataclasses import dataclass
from typing import AbstractSet, Dict


@dataclass(frozen=True)
class Source:
    """Where a module's options come from.

    capability: what the module plans and applies, its option of gpu_plan.
    role:       whose variables they are.
    prefix:     what stands before an option's name in the name of the variable that is the option's alone.
    """

    capability: str
    role: str
    prefix: str

    def variable(self, option: str, specified: AbstractSet[str]) -> str:
        """The variable behind an option, among those that the role specifies; '' where the option is none."""
        for name in (self.prefix + option, "%s_%s" % (self.role, option)):
            if name in specified:
                return name
        return ""


SOURCES: Dict[str, Source] = {
    "gpu_driver": Source("driver", "gpu_driver", "gpu_driver_"),
    "gpu_driver_activation": Source("activation", "gpu_driver", "gpu_driver_"),
    "nouveau": Source("nouveau", "gpu_driver", "gpu_driver_"),
    "container_toolkit": Source("toolkit", "container_toolkit", "container_toolkit_"),
    "container_runtime": Source("runtime", "container_runtime", "container_runtime_"),
    "cdi_spec": Source("cdi", "container_runtime", "container_runtime_cdi_"),
    "gpu_validation": Source("validation", "gpu_validation", "gpu_validation_"),
}
