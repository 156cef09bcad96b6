# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host's health for node_exporter's textfile collector, in Prometheus' text format. Pure.

The collector refuses a file with timestamps, and one whose HELP differs from another file's. When a look was is a
value, so that one that has stopped is seen. Findings name no processes. Why a boot has failed is told as on the Node,
where more people read it.
"""
from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Tuple

from ..core import boot_record
from .findings import SWITCH
from .model import VERDICTS, WHATS, State
from .problems import plain
from .summary import by_weight

Sample = Tuple[Mapping[str, str], float]
# {name: (type, help)}
METRICS: Dict[str, Tuple[str, str]] = {
    "gpuops_health_verdict": ("gauge", "1 of what the host is: sick, unknown, pending, warning or well."),
    "gpuops_health_findings": ("gauge", "Open findings, with what mends them."),
    "gpuops_health_unknown": ("gauge", "1 of what could not be read, 0 of what could."),
    "gpuops_health_last_look_seconds": ("gauge", "When the host was looked at last, in seconds since the epoch."),
    "gpuops_health_xid_errors_total": ("counter", "Errors of GPUs in the kernel's log that were seen."),
    "gpuops_health_sxid_errors_total": ("counter", "Errors of NVSwitches in the kernel's log that were seen."),
    "gpuops_boot_state": ("gauge", "1 of what became of the boot: working, validated, failed, no_gpus or late."),
    "gpuops_boot_failure": ("gauge", "Why the host is not validated since its boot."),
}


def metrics_text(state: State, of_boot: Mapping[str, Any]) -> str:
    """All metrics of a state, and of what became of the boot (core/boot_record.py), {} where nobody has told."""
    samples: Dict[str, List[Sample]] = {
        "gpuops_health_verdict": [({"verdict": each}, float(each == state.verdict)) for each in VERDICTS],
        "gpuops_health_findings": [
            ({"gpu": each.subject.address, "uuid": each.subject.uuid, "subject": each.subject.kind,
              "source": each.source, "kind": each.kind, "remedy": each.remedy, "code": each.code}, 1.0)
            for each in by_weight(state)],
        "gpuops_health_unknown": [({"what": each}, float(each in state.unknown)) for each in WHATS],
        "gpuops_health_last_look_seconds": [({}, state.at)],
        "gpuops_health_xid_errors_total": list(_errors(state, "xid")),
        "gpuops_health_sxid_errors_total": list(_errors(state, "sxid")),
        "gpuops_boot_state": [
            ({"state": each}, float(each == of_boot.get("state"))) for each in boot_record.STATES],
        "gpuops_boot_failure": list(_failures(of_boot)),
    }
    return "".join(_family(name, samples[name]) for name in METRICS)


def _errors(state: State, series: str) -> Iterable[Sample]:
    for key, codes in sorted(state.counts.items()):
        kind, _separator, name = key.partition(" ")
        known = state.gpus.get(name)
        for code, count in sorted(codes.items()):
            if code.split()[0] == series:
                where = {"switch": name} if kind == SWITCH else {
                    "gpu": known.address if known else name, "uuid": known.uuid if known else ""}
                yield {**where, series: code.split()[1]}, float(count)


def _failures(of_boot: Mapping[str, Any]) -> Iterable[Sample]:
    if of_boot.get("state") == boot_record.FAILED:
        yield {"reason": plain(" ".join(str(of_boot.get("reason") or "").split()))}, 1.0


def _family(name: str, samples: Iterable[Sample]) -> str:
    lines = ["# HELP %s %s" % (name, METRICS[name][1]), "# TYPE %s %s" % (name, METRICS[name][0])]
    lines += ["%s%s %s" % (name, _labels(labels), repr(value)) for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{%s}" % ",".join('%s="%s"' % (name, _escaped(value)) for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
