# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's charts, rendered by the real Helm with values as people write them (tests/lab/charts/cases.yml).

The chart of the DCGM exporter is in no Go module and in no package registry that serves it: GPUOPS_DCGM_CHART names the
directory of one, deployment/ of a checkout of https://github.com/NVIDIA/dcgm-exporter.
"""
from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

import yaml

from .cache import BuildError
from .parts import charts as part
from .parts.registry import workshop

CASES = Path(__file__).resolve().parents[1] / "charts" / "cases.yml"
NAMESPACE = "gpuops"
DEVICE_PLUGIN = part.NAME
EXPORTER = "dcgm-exporter"
KUBERNETES = "1.34.4"
# Kinds that a chart makes only where the API has them
API_VERSIONS = ("monitoring.coreos.com/v1",)

Object = Dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A way to use a chart, and what means the same to our roles. The comment of cases.yml says what each field is."""

    name: str
    title: str
    values: Mapping[str, Any]
    variables: Mapping[str, Any]
    chart: str = DEVICE_PLUGIN
    components: Tuple[str, ...] = ()
    nodes: Optional[Mapping[str, Mapping[str, str]]] = None
    mig: str = ""
    offers: Optional[Mapping[str, int]] = None

    def compared(self) -> Tuple[str, ...]:
        return self.components or (("dcgm_exporter",) if self.chart == EXPORTER else ("device_plugin",))

    def options(self, component: str) -> Dict[str, Any]:
        """The options of a component: its variables without the role's prefix."""
        prefix = component + "_"
        return {name[len(prefix):]: value for name, value in self.variables.items() if name.startswith(prefix)}


def cases() -> List[Case]:
    told = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    return [_case(name, each) for name, each in told.items()]


def _case(name: str, told: Mapping[str, Any]) -> Case:
    fields: Dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in told.items()}
    return Case(name=name, **fields)


def directory(chart: str) -> Optional[Path]:
    """Where a chart is; None for one that this machine does not have."""
    if chart == EXPORTER:
        told = os.environ.get("GPUOPS_DCGM_CHART")
        return Path(told) if told else None
    return workshop().build("charts") / chart


def helm(*words: str, environment: Optional[Mapping[str, str]] = None) -> str:
    """What Helm says. It keeps nothing, and knows no cluster but one that the environment names."""
    program = workshop().build("helm") / "bin" / "helm"
    with tempfile.TemporaryDirectory() as home:
        own = {"HELM_%s_HOME" % each: os.path.join(home, each.lower()) for each in ("CACHE", "CONFIG", "DATA")}
        done = subprocess.run([str(program), *words], env={**os.environ, **own, **(environment or {})},
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise BuildError("helm %s ended with %d: %s" % (" ".join(words[:3]), done.returncode, done.stderr[-3000:]))
    return done.stdout


def rendered(case: Case) -> List[Object]:
    """The objects that the chart makes of the case's values."""
    chart = directory(case.chart)
    if chart is None:
        raise BuildError("found no chart %s, wanted its directory in GPUOPS_DCGM_CHART" % case.chart)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as values:
        json.dump(case.values, values)
        values.flush()
        apis = [word for each in API_VERSIONS for word in ("--api-versions", each)]
        text = helm("template", case.chart, str(chart), "--namespace", NAMESPACE, "--values", values.name,
                    "--include-crds", "--kube-version", KUBERNETES, *apis)
    return [each for each in yaml.safe_load_all(text) if each]
