# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Generate and remove the CDI specification."""
from __future__ import annotations

from typing import Dict

from ...core.errors import GpuOpsError
from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import Step
from ...core.steps import Executor
from .observation import REFRESH_SERVICE
from .planner import GENERATE, NAME, REMOVE
from .spec import KIND, PATH, read_spec

GENERATOR = ("nvidia-ctk", "--quiet", "cdi", "generate", "--format", "yaml")


def generate(host: Host, journal: Journal, step: Step) -> None:
    """Have nvidia-ctk print the specification, look at it, then put it in place at once."""
    text = host.run(GENERATOR).stdout
    made = read_spec(text)
    wanted = step.change["after"]
    if made.kind != KIND or made.gpus < 1:
        raise GpuOpsError(
            found="a specification of kind '%s' with %d GPUs from nvidia-ctk" % (made.kind, made.gpus),
            wanted="%d GPUs of kind %s" % (wanted["gpus"], KIND),
            remedy="run 'nvidia-ctk --debug cdi generate' and 'nvidia-smi -L' on this host",
        )
    host.write(PATH, text)
    _forgive_refresh(host)
    journal.remember(NAME, {"generated": True})


def _forgive_refresh(host: Host) -> None:
    """The toolkit's packages start their refresh at once; without a loaded driver it fails and degrades the host."""
    if host.unit(REFRESH_SERVICE).get("ActiveState") == "failed":
        host.systemctl("reset-failed", REFRESH_SERVICE)


def remove(host: Host, journal: Journal, step: Step) -> None:
    host.remove(PATH)
    journal.remember(NAME, {})


def enable(host: Host, journal: Journal, step: Step) -> None:
    """systemctl(1): these verbs reload the manager, and a reload takes GPUs from containers of the legacy mode."""
    host.systemctl(step.action.split(".", 1)[1], "--no-reload", step.subject)


EXECUTORS: Dict[str, Executor] = {
    GENERATE: generate,
    REMOVE: remove,
    "service.enable": enable,
    "service.disable": enable,
}
