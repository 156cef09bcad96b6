# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host's health for node-problem-detector: its configuration, a plugin, and the file that the plugin reads. Pure.

Contract of a custom plugin (kubernetes/node-problem-detector v1.34.0, pkg/custompluginmonitor): exit code 0 is no
problem, 1 a problem, any other unknown; the first so many bytes of what it prints are the condition's message. Two
rules of one condition overwrite each other, so there is one. What it starts with would call every node well before
anything was read, so that is skipped; but the first answer of any rule sends all conditions of its configuration, and
the next round of a configuration begins when all its rules have ended. So each condition has a configuration of its
own: none is called well, and none stands still, for another's sake. A plugin that is not there ends the program when
it starts.

The plugin runs every ten seconds, three at once, perhaps in an image without Python: it is a shell's own words alone,
starts no program, and reads one small file. Time is the kernel's since the boot, which nobody sets.
"""
from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

from ..core.steps import MANAGED
from .catalogue import PENDING, SICK, WARNING
from .model import DECISIVE

PLUGIN = "/usr/local/lib/gpuops/health-condition"
SOURCE = "gpuops-health"
# node-problem-detector cuts a message there; a condition's message is ASCII, so that no letter is cut in two
MOST_BYTES = 512
_FORMAT = "1"
WELL, PROBLEM, UNKNOWN = 0, 1, 2
# {condition: (kind of findings, its reason while there are such, while there are none, and what to say then)}
CONDITIONS: Dict[str, Tuple[str, str, str, str]] = {
    "GpuSick": (SICK, "GpuIsSick", "NoGpuIsSick", "no GPU is sick"),
    "GpuResetPending": (PENDING, "GpuNeedsReset", "NoGpuNeedsReset", "no GPU waits for a reset"),
    "GpuWarning": (WARNING, "GpuIsWarnedOf", "NoGpuIsWarnedOf", "no warning of a GPU"),
}


def configurations(plugin: str = PLUGIN) -> Dict[str, Dict[str, Any]]:
    """{condition: the file that node-problem-detector is given for it by --config.custom-plugin-monitor}."""
    return {name: {
        # The detector passes over what it does not know
        "managed": MANAGED,
        "plugin": "custom",
        "pluginConfig": {
            "invoke_interval": "10s",
            "timeout": "2s",
            "max_output_length": MOST_BYTES,
            "concurrency": 1,
            "enable_message_change_based_condition_update": True,
            "skip_initial_status": True,
        },
        "source": SOURCE,
        "metricsReporting": True,
        "conditions": [{"type": name, "reason": reason, "message": message}],
        "rules": [{"type": "permanent", "condition": name, "reason": problem, "path": plugin, "args": [name],
                   "timeout": "2s"}],
    } for name, (_kind, problem, reason, message) in CONDITIONS.items()}


def conditions_text(data: Mapping[str, Any], boot: str, uptime: float, stale_seconds: int) -> str:
    """What the plugin reads: 'FORMAT BOOT SECONDS', until when it counts, and 'CONDITION CODE MESSAGE' a condition.

    data: the summary. uptime: now, in seconds since the boot.
    """
    lines = ["%s %s %d" % (_FORMAT, boot or "-", uptime + stale_seconds)]
    lines += ["%s %d %s" % (name, code, message) for name, (code, message) in judged(data).items()]
    # A file that was cut short has no such line
    return "\n".join([*lines, "end"]) + "\n"


def judged(data: Mapping[str, Any]) -> Dict[str, Tuple[int, str]]:
    """{condition: (WELL, PROBLEM or UNKNOWN, its message)} of a summary."""
    found = {}
    for name, (kind, _problem, _reason, message) in CONDITIONS.items():
        findings = [each for each in data["findings"] if each["kind"] == kind]
        unknown = [each for each in data["unknown"] if each["what"] in DECISIVE]
        if findings:
            found[name] = PROBLEM, plain("; ".join(_told(each) for each in findings))
        elif unknown or not data["looked"]:
            found[name] = UNKNOWN, plain("unknown: %s" % (
                "; ".join(each["text"] for each in unknown) or "not looked at yet"))
        else:
            found[name] = WELL, message
    return found


def plain(message: str) -> str:
    """A message as a condition may have it: one line of ASCII, and no longer than that."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in message)[:MOST_BYTES]


def _told(finding: Mapping[str, Any]) -> str:
    todo = finding["to_do"] or ("compute on it (%s)" % finding["check"] if finding["check"] else "")
    return "%s: %s, %s%s" % (finding["named"], finding["code"], finding["text"], " -> %s" % todo if todo else "")


def plugin_text(conditions: str) -> str:
    """The plugin. conditions: where it finds the file; '$GPUOPS_HEALTH' names another, for a container's mount."""
    return _PLUGIN % {"path": conditions, "format": _FORMAT}


_PLUGIN = """\
#!/bin/sh
# Managed by the Ansible collection gpuops.nvidia: changes made here are lost.
# Tells node-problem-detector one condition of this host's GPUs: 0 is no problem, 1 a problem, 2 unknown.
wanted=${1:-} file=${GPUOPS_HEALTH:-%(path)s}
unknown() {
    printf '%%s\\n' "$1"
    exit 2
}
[ -n "$wanted" ] || unknown 'no condition was asked for'
{ read -r boot </proc/sys/kernel/random/boot_id && read -r now rest </proc/uptime; } 2>/dev/null ||
    unknown 'neither boot nor time can be told'
[ -r "$file" ] || unknown "$file is not there: gpuops does not look at this host's GPUs"
code='' message='' whole='' head='' limit=''
while read -r first second rest; do
    if [ -z "$head" ]; then
        head="$first $second" limit=$rest
    elif [ "$first" = "$wanted" ]; then
        code=$second message=$rest
    elif [ "$first" = end ]; then
        whole=yes
    fi
done 2>/dev/null <"$file"
[ "$whole" ] || unknown "$file is not whole"
[ "$head" = "%(format)s $boot" ] || unknown "$file is of another boot, or of another release"
case $limit in
'' | *[!0-9]*) unknown "$file says not how long it counts" ;;
esac
[ "${now%%%%.*}" -le "$limit" ] || unknown "stale: gpuops has not looked at this host's GPUs in time"
case $code in
0 | 1 | 2)
    printf '%%s\\n' "$message"
    exit "$code"
    ;;
esac
unknown "$file says nothing of $wanted"
"""
