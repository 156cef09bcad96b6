# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A look at a host's health for who asks from a controller: what is found now, and whether that is let pass."""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Collection, Dict, Mapping, Sequence

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.rights import asked_by
from ..hardware.recovery import POWER_CYCLE, REMEDIES
from .catalogue import SICK
from .findings import Finding, key_of
from .policy import policy_of
from .state import kept, look_and_keep, note_remedy, only_look
from .summary import by_weight, summary

NOTHING, UNMENDED, SICKNESS = FAIL_ON = ("nothing", "unmended", "sick")
ARGUMENTS: Dict[str, Any] = {
    "health": {"type": "dict", "default": {}},
    "metrics_directory": {"type": "str", "default": ""},
    # What the host sees by itself needs nobody to say it
    "remedy": {"type": "str", "choices": [POWER_CYCLE]},
    "keep": {"type": "bool", "default": True},
    # What an earlier look has told: it is no news, and fails nothing
    "known": {"type": "list", "elements": "str", "default": []},
    "fail_on": {"type": "str", "default": NOTHING, "choices": list(FAIL_ON)},
}


def looked(host: Host, parameters: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    """The summary of one look, judged, and kept where that is asked for.

    Raises GpuOpsError where something is not let pass.
    """
    policy, directory = policy_of(parameters["health"] or {}), parameters["metrics_directory"]
    if check_mode:
        state = kept(host)
    else:
        if parameters["remedy"]:
            note_remedy(host, policy, parameters["remedy"], "", "%s, by %s" % (
                parameters["remedy"].replace("_", " "), asked_by()), directory)
        state = look_and_keep(host, policy, directory) if parameters["keep"] else only_look(host, policy)
    news = [each for each in by_weight(state) if not _is_known(each, parameters["known"])]
    sick = [each for each in news if each.kind == SICK
            and (parameters["fail_on"] == SICKNESS or not each.mended)]
    if sick and parameters["fail_on"] != NOTHING:
        raise _sick(sick)
    told = summary(state)
    # What the remedy of a refusal is called
    told["rung"] = told.pop("remedy")
    told["gpus"] = len(state.gpus)
    told["news"] = list(dict.fromkeys(each.code for each in news))
    return {"changed": False, **told}


def _is_known(finding: Finding, known: Collection[str]) -> bool:
    """Under the GPU's place too, which is its name for as long as nobody has told its UUID."""
    return finding.key in known or key_of(replace(finding.subject, uuid=""), finding.code) in known


def _sick(findings: Sequence[Finding]) -> GpuOpsError:
    return GpuOpsError(
        "health.sick",
        found="; ".join("%s: %s (%s)%s" % (
            _named(each), each.text, each.code, ", mended by %s and not proved" % each.mended if each.mended else "")
            for each in findings),
        wanted="nothing that is sick, before the node takes work",
        remedy="; ".join(dict.fromkeys(_to_do(each) for each in findings)),
    )


def _named(finding: Finding) -> str:
    serial = finding.subject.serial
    return "%s, serial number %s" % (finding.subject.named(), serial) if serial else finding.subject.named()


def _to_do(finding: Finding) -> str:
    if finding.mended:
        return "have %s compute (`gpu_validation`), and look again" % finding.subject.named()
    return "%s: %s" % (finding.subject.named(), REMEDIES[finding.remedy] or "see `docs/health.md`")
