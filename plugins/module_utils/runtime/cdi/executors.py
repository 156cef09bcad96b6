# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Generate and remove the CDI specification."""
from __future__ import annotations

from typing import Dict, Sequence

from ...core.errors import GpuOpsError
from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import Step
from ...core.steps import Executor
from .observation import REFRESH_SERVICE, refresh_environment
from .planner import GENERATE, NAME, REMOVE
from .spec import KIND, read_spec

GENERATOR = ("nvidia-ctk", "--quiet", "cdi", "generate", "--format")
LISTER = ("nvidia-ctk", "--quiet", "cdi", "list", "--spec-dir")


def generate(host: Host, journal: Journal, step: Step) -> None:
    """Have nvidia-ctk print the specification, look at it, then put it in place at once."""
    # nvidia-smi creates the device nodes of MIG devices, which a module of the kernel cannot (its unit does the same)
    host.run(["nvidia-smi", "-L"], check=False)
    kind = "json" if step.subject.endswith(".json") else "yaml"
    text = host.run([*GENERATOR, kind], env=refresh_environment(host)).stdout
    made = read_spec(text)
    wanted = step.change["after"]
    if made.kind != KIND or made.gpus < 1:
        raise GpuOpsError(
            found="a specification of kind '%s' with %d GPUs from nvidia-ctk" % (made.kind, made.gpus),
            wanted="%d GPUs of kind %s" % (wanted["gpus"], KIND),
            remedy="run 'nvidia-ctk --debug cdi generate' and 'nvidia-smi -L' on this host",
        )
    _judge(host, text, made.names, kind)
    host.write(step.subject, text)
    _forgive_refresh(host)
    journal.remember(NAME, {"generated": True})


def _judge(host: Host, text: str, names: Sequence[str], kind: str) -> None:
    """The library that container runtimes read specifications with must see every device."""
    with host.scratch() as folder:
        host.write("%s/nvidia.%s" % (folder, kind), text)
        listed = host.run([*LISTER, folder], check=False)
    unseen = [name for name in names if "%s=%s" % (KIND, name) not in listed.stdout.split()]
    if unseen:
        raise GpuOpsError(
            found="a specification in which 'nvidia-ctk cdi list' does not see %s: %s"
                  % (", ".join(unseen), listed.stderr.strip()),
            wanted="a specification that container runtimes accept",
            remedy="compare the versions of nvidia-ctk and nvidia-cdi-hook; nothing was changed",
        )


def _forgive_refresh(host: Host) -> None:
    """The toolkit's packages start their refresh at once; without a loaded driver it fails and degrades the host."""
    if host.unit(REFRESH_SERVICE).get("ActiveState") == "failed":
        host.systemctl("reset-failed", REFRESH_SERVICE)


def remove(host: Host, journal: Journal, step: Step) -> None:
    host.remove(step.subject)
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
