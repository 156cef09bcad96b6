# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The file of rules that Prometheus reads, made of the table of alerts. Pure."""
from __future__ import annotations

from typing import Any, Dict

from .alerts import ALERTS, GROUPS, NODE, Alert
from .policy import Settings

ALERT_NAMES = frozenset(alert.name for alert in ALERTS)


def rules(settings: Settings) -> Dict[str, Any]:
    """The content of a file of rules, and as well the `spec` of a PrometheusRule."""
    groups = []
    for group in GROUPS:
        made = [_rule(alert, settings) for alert in group.alerts if alert.name not in settings.disabled]
        if made:
            timing = {"interval": group.interval} if group.interval else {}
            groups.append({"name": group.name, **timing, "rules": made})
    return {"groups": groups}


def _rule(alert: Alert, settings: Settings) -> Dict[str, Any]:
    override = settings.overrides.get(alert.name)
    explained = " ".join(part for part in (alert.description, alert.explanation, "To do: %s." % alert.remedy) if part)
    annotations = {"summary": alert.summary, "description": explained}
    if settings.runbook:
        annotations["runbook_url"] = "%s#%s" % (settings.runbook, alert.name.lower())
    return {
        "alert": alert.name,
        "expr": alert.expression(settings),
        "for": (override and override.pending) or alert.pending,
        "labels": {
            "severity": (override and override.severity) or alert.severity,
            # Where it comes out empty, there is no such label
            "node": NODE,
            **settings.extra_labels,
        },
        "annotations": annotations,
    }
