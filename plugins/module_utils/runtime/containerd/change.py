# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A change of somebody's containerd: which files, what containerd will read then, and what the distributions share."""
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from ...core.errors import GpuOpsError
from ...core.host import Host
from .. import toml
from ..model import Edit
from ..policy import RuntimePolicy
from .configuration import Configuration, handlers
from .writer import Tables, adopting, differing

FILE = "99-gpuops-nvidia"
HEADER = "# Managed by gpuops.nvidia: the handler for NVIDIA GPUs.\n"


@dataclass(frozen=True)
class Change:
    """
    edits:   files to change.
    preview: files as the distribution will have rendered them then: what containerd judges in their place.
    pending: whether the distribution itself would bring a handler at its next start.
    """

    edits: Tuple[Edit, ...] = ()
    preview: Tuple[Edit, ...] = ()
    pending: bool = False


def change_of(edits: Sequence[Edit], preview: Sequence[Edit], pending: bool = False) -> Change:
    """The change without files that stay as they are; where all do, there is nothing to judge."""
    changed = tuple(edit for edit in edits if edit.before != edit.after)
    return Change(changed, tuple(edit for edit in preview if edit.before != edit.after) if changed else (), pending)


def whole_file(host: Host, path: str, text: Optional[str], like: str = "") -> Edit:
    """A file that is wholly ours; None takes it away."""
    before = host.read(path)
    return Edit(path, before, text, before, text, like=like)


def drop_in_text(version: int, tables: Tables) -> Optional[str]:
    return HEADER + "version = %d\n\n" % version + toml.render_tables(tables) if tables else None


def without(configuration: Configuration, drop_in: str) -> Configuration:
    """The configuration without our file and our lines."""
    changed: Dict[str, Optional[str]] = {file.path: toml.without_ours(file.text) for file in configuration.files}
    changed[drop_in] = None
    return configuration.but(changed)


def overrides(known: Mapping[str, Any], cri_id: str, policy: RuntimePolicy) -> Tables:
    """What makes handlers of others the wanted ones, in a file that is read after theirs."""
    tables: Tables = {}
    for name in differing(known, policy):
        tables.update(adopting(("plugins", cri_id), name, known[name], policy.entries[name]))
    return tables


def check_read_last(host: Host, ours: str, handler: str, cri_id: str) -> None:
    """Files of a folder are read by their names: a later one that defines the handler would win over ours."""
    for path in host.glob(os.path.dirname(ours) + "/*.toml"):
        section = toml.parse(path, host.read(path) or "").get("plugins", {}).get(cri_id, {})
        if path > ours and handler in handlers(section):
            raise GpuOpsError(
                found="%s defines the handler '%s' and is read after %s" % (path, handler, os.path.basename(ours)),
                wanted="a file of ours that is read last, to take the handler over",
                remedy="give that file a name that sorts before %s, or take the handler out of it"
                       % os.path.basename(ours),
                file=path,
            )


def foreign_handler(where: str, handler: str, difference: str, binary: str, remedy: str) -> GpuOpsError:
    return GpuOpsError(
        found="%s defines the handler '%s' with %s" % (where, handler, difference),
        wanted="BinaryName = %s" % binary,
        remedy=remedy,
    )
