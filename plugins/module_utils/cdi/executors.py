# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Generate and remove the CDI specification, and the links under /dev/char."""
from __future__ import annotations

from typing import Any, Dict, Sequence

from ..core.errors import GpuOpsError, HostFailed
from ..core.facts import CUDA_NODES
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import Executor, control_service
from . import links
from .boot import REFRESH_SERVICE
from .observation import GENERATE_COMMAND, GENERATE_LIMIT, GENERATOR, generator_id, refresh_environment
from .planner import DISCARD, GENERATE, LINK, NAME, REMOVE, UNLINK
from .spec import KIND, read_spec

NODES_COMMAND = (GENERATOR, "--quiet", "system", "create-device-nodes", "--control-devices")
LIST_COMMAND = (GENERATOR, "--quiet", "cdi", "list", "--spec-dir")
LINK_COMMANDS = tuple((GENERATOR, "--quiet", *words) for words in (links.COMMAND, links.COMMAND_FOR_EXISTING))


def generate(host: Host, journal: Journal, step: Step) -> None:
    """Have nvidia-ctk print the specification, look at it, then put it in place at once.

    It names the nodes that it finds, so they come first, in the way of its own unit: a module of the kernel makes none.
    """
    # nvidia-smi creates the device nodes of MIG devices
    host.run(["nvidia-smi", "-L"], check=False)
    if host.run([*NODES_COMMAND, "--load-kernel-modules"], check=False).rc != 0:
        host.run(NODES_COMMAND, check=False)
    kind = "json" if step.subject.endswith(".json") else "yaml"
    generator = generator_id(host, host.which(GENERATOR))
    text = host.run([*GENERATE_COMMAND, kind], env=refresh_environment(host), timeout=GENERATE_LIMIT).stdout
    made = read_spec(text)
    wanted = step.change["after"]
    if made.kind != KIND or made.devices < 1:
        raise GpuOpsError(
            "cdi.devices_missing",
            found="a specification of kind '%s' with %d devices from nvidia-ctk" % (made.kind, made.devices),
            wanted="the devices of %d GPUs, of kind %s" % (wanted["gpus"], KIND),
            remedy="run `nvidia-ctk --debug cdi generate` and `nvidia-smi -L` on this host",
        )
    unnamed = [node for node in CUDA_NODES if node not in made.nodes]
    if unnamed:
        raise GpuOpsError(
            "cdi.device_nodes_missing",
            found="a specification without %s from nvidia-ctk" % ", ".join(unnamed),
            wanted="the device nodes that every CUDA program opens",
            remedy="run `modprobe nvidia-uvm` and `nvidia-modprobe -u -c 0` as root, and read what they say",
        )
    _judge(host, text, made.names, kind)
    _put(host, journal, step.subject, text)
    _note(journal, generator=generator)
    _forgive_refresh(host)


def _put(host: Host, journal: Journal, path: str, text: str) -> None:
    """It is ours to remove once it may be there, also when this process is killed in between; not when it is not."""
    before = journal.recall(NAME).get("generated", False)
    _note(journal, generated=True)
    try:
        host.write(path, text)
    except HostFailed:
        _note(journal, generated=before)
        raise


def _judge(host: Host, text: str, names: Sequence[str], kind: str) -> None:
    """The library that container runtimes read specifications with must see every device."""
    with host.scratch() as directory:
        host.write("%s/nvidia.%s" % (directory, kind), text)
        listed = host.run([*LIST_COMMAND, directory], check=False)
    unseen = [name for name in names if "%s=%s" % (KIND, name) not in listed.stdout.split()]
    if unseen:
        raise GpuOpsError(
            "cdi.specification_not_taken",
            found="a specification in which `nvidia-ctk cdi list` does not see %s: %s"
                  % (", ".join(unseen), listed.stderr.strip()),
            wanted="a specification that container runtimes accept",
            remedy="compare the versions of `nvidia-ctk` and `nvidia-cdi-hook`; nothing was changed",
        )


def _forgive_refresh(host: Host) -> None:
    """The toolkit's packages start their refresh at once; without a loaded driver it fails and degrades the host."""
    if host.unit(REFRESH_SERVICE).get("ActiveState") == "failed":
        host.systemctl("reset-failed", REFRESH_SERVICE)


def remove(host: Host, journal: Journal, step: Step) -> None:
    host.remove(step.subject)
    _note(journal, generated=False, generator="")


def discard(host: Host, journal: Journal, step: Step) -> None:
    host.remove(step.subject)


def link(host: Host, journal: Journal, step: Step) -> None:
    """nvidia-ctk leaves a link that is there as it is, so those with an old number go before."""
    for name in links.misleading(host):
        host.remove(name)
    _note(journal, linked=True)
    for command in LINK_COMMANDS:
        host.run(command)


def unlink(host: Host, journal: Journal, step: Step) -> None:
    for name in links.ours(host):
        host.remove(name)
    _note(journal, linked=False)


def enable(host: Host, journal: Journal, step: Step) -> None:
    """Written down before: what a killed run enabled is ours to disable."""
    known = journal.recall(NAME).get("enabled", [])
    _note(journal, enabled=[unit for unit in known if unit != step.subject] + [step.subject])
    control_service(host, journal, step)


def disable(host: Host, journal: Journal, step: Step) -> None:
    control_service(host, journal, step)
    _note(journal, enabled=[unit for unit in journal.recall(NAME).get("enabled", []) if unit != step.subject])


def _note(journal: Journal, **facts: Any) -> None:
    known = dict(journal.recall(NAME), **facts)
    journal.remember(NAME, {name: value for name, value in known.items() if value})


EXECUTORS: Dict[str, Executor] = {
    GENERATE: generate, REMOVE: remove, DISCARD: discard, LINK: link, UNLINK: unlink,
    "service.enable": enable, "service.disable": disable,
}
