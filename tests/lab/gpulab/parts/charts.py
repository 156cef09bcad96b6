# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's chart of the device plugin, with that of node feature discovery in it, from the plugin's own Go module.

It is of the release that the laboratory builds: the go.mod that names the one names the other.
"""
from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Tuple

from ..cache import BuildError, Job, Part
from . import gobuilds
from .families import LAB
from .layer import copy_tree

NAME = "nvidia-device-plugin"
_MODULE = "github.com/NVIDIA/k8s-device-plugin"
_GO_MODULE = LAB / "nvidia" / "device-plugin"


def _build_charts(job: Job) -> None:
    problem = gobuilds.toolchain_problem()
    if problem:
        raise BuildError("part %s: %s" % (job.part_name, problem))
    told = subprocess.run([gobuilds._go(), "mod", "download", "-json", _MODULE], cwd=_GO_MODULE, check=True,
                          stdout=subprocess.PIPE, universal_newlines=True)
    source = Path(json.loads(told.stdout)["Dir"])
    chart = job.out / NAME
    chart.mkdir()
    copy_tree(source / "deployments" / "helm" / NAME, chart)


PARTS: Tuple[Part, ...] = (
    Part("charts", "NVIDIA's chart of the device plugin", _build_charts,
         inputs=(_GO_MODULE / "go.mod", _GO_MODULE / "go.sum")),
)
