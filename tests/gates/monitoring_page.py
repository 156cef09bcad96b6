# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The part of docs/monitoring.md that the table of alerts says already: every alert, Xid and threshold."""
from __future__ import annotations

import re
from typing import Any, List, Sequence

from role_files import plugin
from workspace import REPOSITORY

PAGE = "docs/monitoring.md"
BEGIN = "<!-- Made from the table of alerts by tests/gates/documentation.py -->"
END = "<!-- End of what is made -->"
PACKAGE = "module_utils.cluster.components.gpu_monitoring."
# What a summary has from an alert's labels and value
NODE = re.compile(r"\{\{ or [^}]*\}\}")
LABEL = re.compile(r"\{\{ \$labels\.(?:\w*_)?(\w+) \}\}")
CHOICE = re.compile(r"\{\{ if [^}]*\}\}(.*?)\{\{ else \}\}(.*?)\{\{ end \}\}")
VALUE = re.compile(r"\{\{[^}]*\$value[^}]*\}\}")


def page() -> str:
    """The page with what is made between its marks; the rest is kept."""
    text = (REPOSITORY / PAGE).read_text()
    before, rest = text.split(BEGIN)
    return before + "\n".join([BEGIN, "", *_made(), "", END]) + rest.split(END)[1]


def _made() -> List[str]:
    alerts, policy, xids = (plugin(PACKAGE + name) for name in ("alerts", "policy", "xids"))
    lines: List[str] = ["## The alerts"]
    for group in alerts.GROUPS:
        lines += ["", "### %s" % group.title]
        for alert in group.alerts:
            lines += ["", *_alert(alert)]
    lines += ["", "## What an Xid asks for", "",
              "| Xid | Alert | Means | Do |", "|---|---|---|---|",
              *_xid_rows(xids.CRITICAL, "GpuXidCritical"), *_xid_rows(xids.WARNING, "GpuXidWarning"),
              "| any other | GpuXidWarning | %s | %s |" % (xids.OF_NO_TABLE.meaning, xids.OF_NO_TABLE.remedy),
              "| %s | none | A fault of what runs on the GPU | look at the application |" % _numbers(xids.APPLICATION),
              "", "## Thresholds", "", "| Threshold | Default | Counts | Why that | Alerts |", "|---|---|---|---|---|"]
    for name, threshold in policy.THRESHOLDS.items():
        users = ", ".join(alert.name for alert in alerts.ALERTS if name in alert.thresholds)
        lines.append("| `%s` | %.12g | %s | %s | %s |" % (
            name, threshold.default, threshold.meaning, threshold.source, users))
    return lines


def _alert(alert: Any) -> List[str]:
    pending = "at once" if alert.pending == "0m" else "after %s" % alert.pending
    needs = "; needs %s" % alert.needs if alert.needs else ""
    fires = '%s, %s%s: "%s".' % (alert.severity, pending, needs, _plain(alert.summary))
    return ["#### %s" % alert.name, "", fires, "", alert.description, "", "Do: %s." % alert.remedy]


def _plain(summary: str) -> str:
    """A summary without its templates: dots for a value."""
    text = NODE.sub("NODE", summary)
    text = CHOICE.sub(r"\1, or \2", text)
    text = text.replace("{{ $labels.gpu }}", "N")
    return LABEL.sub(lambda found: found.group(1).upper(), VALUE.sub("…", text))


def _xid_rows(remedies: Sequence[Any], alert: str) -> List[str]:
    return ["| %s | %s | %s | %s |" % (_numbers(each.xids), alert, each.meaning, each.remedy) for each in remedies]


def _numbers(numbers: Sequence[int]) -> str:
    """'11, 39 to 41': three and more in a row as a range."""
    ranges: List[List[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ", ".join("%d to %d" % (each[0], each[-1]) if len(each) > 2 else ", ".join(map(str, each))
                     for each in ranges)
