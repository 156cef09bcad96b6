# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Alert rules and dashboard as files on the controller, for a Prometheus and a Grafana that read directories."""
from __future__ import annotations

import os
from typing import Any, Mapping

from ansible.utils.path import unfrackpath

from ..module_utils.cluster.components.gpu_monitoring.component import files
from .text_files import Files, claim


def wanted_files(parameters: Mapping[str, Any], absent: bool, of_others: Files) -> Files:
    """What one cluster wants on the controller.

    parameters: complete options. of_others: what the clusters before it want there; takes up what this one wants.
    Raises GpuOpsError where two clusters want a different text in one place.
    """
    if not parameters["directory"]:
        return {}
    directory = unfrackpath(parameters["directory"], follow=False)
    made: Files = {os.path.join(directory, name): None if absent else text for name, text in files(parameters).items()}
    claim(made, of_others, "directory")
    return made
