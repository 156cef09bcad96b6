# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The page on NVIDIA's charts and ours: what means the same, and what differs, from tests/lab/charts."""
from __future__ import annotations

from typing import Any, Dict, Iterator, List

import yaml
from workspace import REPOSITORY

PAGE = "docs/upstream-charts.md"
DATA = REPOSITORY / "tests" / "lab" / "charts"
CHARTS = {
    "nvidia-device-plugin": "NVIDIA's chart `nvidia-device-plugin` 0.19.3, with `node-feature-discovery` 0.17.3 in it",
    "dcgm-exporter": "NVIDIA's chart `dcgm-exporter` 4.8.2",
}
HEAD = """\
# Beside NVIDIA's charts

Who has used NVIDIA's charts finds here what to write instead, and what is otherwise then. The page is made from
`cases.yml` and `differences.yml` in `tests/lab/charts` of the repository. A test renders each case with Helm, makes our
objects of the variables, and compares what a node and the cluster have of both: settings after flag, variable, file and
default; devices and files of the host; rights; where it runs; and everything else that is said of a pod. A difference
that is not on this page fails, and so does one on it that is none any more. A [campaign](soak.md) brings the chart and
ours in turn to the same node, and compares what it offers, its labels and what a pod gets.

The chart of the exporter is in no package registry: the test reads it from the directory that `GPUOPS_DCGM_CHART` names
(`deployment` of a checkout of NVIDIA/dcgm-exporter), and leaves its cases out without.
"""


class _Dumper(yaml.SafeDumper):
    """No references, and texts of several lines as such."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def page() -> str:
    return "\n".join([HEAD, *_differences(), *_cases()]) + "\n"


def _load(name: str) -> Dict[str, Any]:
    return dict(yaml.safe_load((DATA / name).read_text(encoding="utf-8")))


def _differences() -> Iterator[str]:
    for chart, parts in _load("differences.yml").items():
        yield "## What differs from %s\n" % CHARTS[chart]
        for part in parts:
            yield "### %s\n" % part["title"]
            if part.get("programs"):
                yield "Of %s.\n" % ", ".join("`%s`" % each for each in part["programs"])
            yield "| What | The chart | Ours | Why |\n|---|---|---|---|"
            for each in part["differences"]:
                yield "| %s |" % " | ".join([
                    ", ".join("`%s`" % fact for fact in each["facts"]), _value(each.get("theirs")),
                    _value(each.get("ours")), " ".join(each["why"].split())])
            yield ""


def _value(told: Any) -> str:
    """A pattern as people read it; what is not told differs from case to case."""
    if told is None:
        return "varies"
    words = {"-": "none", "*[0-9]*": "a figure"}
    return words.get(str(told)) or "`%s`" % told


def _cases() -> Iterator[str]:
    yield "## What means the same\n"
    yield "Values of the chart, then variables of the roles. Where there are none, the defaults are compared.\n"
    for case in _load("cases.yml").values():
        yield "### %s\n" % case["title"]
        yield from _block("values of `%s`" % case.get("chart", "nvidia-device-plugin"), case["values"])
        yield from _block("variables", case["variables"])
        labels = sorted({"`%s=%s`" % pair for each in (case.get("nodes") or {}).values() for pair in each.items()})
        if labels:
            yield "Some of the nodes are labelled %s.\n" % ", ".join(labels)


def _block(title: str, data: Dict[str, Any]) -> List[str]:
    if not data:
        return ["No %s.\n" % title]
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=110)
    return ["%s:\n" % title.capitalize(), "```yaml\n%s```\n" % text]
