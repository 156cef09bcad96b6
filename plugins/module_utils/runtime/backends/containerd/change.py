# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A change of somebody's containerd: which files, what containerd will read then, and what the distributions share."""
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from ....core.errors import GpuOpsError
from ... import toml
from ...model import HEADER, Edit
from ...policy import Policy
from .configuration import Configuration, handlers
from .writer import Tables, adopting, differing

FILE = "99-gpuops-nvidia"


@dataclass(frozen=True)
class Change:
    """What is to be written, and what of it containerd will read.

    edits:   files to change.
    preview: files as the distribution will have rendered them then: what containerd judges in their place.
    """

    edits: Tuple[Edit, ...] = ()
    preview: Tuple[Edit, ...] = ()


def change_of(edits: Sequence[Edit], preview: Sequence[Edit]) -> Change:
    """The change without files that stay as they are; where all do, there is nothing to judge."""
    changed = tuple(edit for edit in edits if edit.before != edit.after)
    return Change(changed, tuple(edit for edit in preview if edit.before != edit.after) if changed else ())


def whole_file(path: str, before: Optional[str], text: Optional[str], like: str = "") -> Edit:
    """A file that is wholly ours; None takes it away."""
    return Edit(path, before, text, before, text, like=like)


def drop_in_text(version: int, tables: Tables) -> Optional[str]:
    return HEADER + "version = %d\n\n" % version + toml.render_tables(tables) if tables else None


def without(configuration: Configuration, drop_in: str) -> Configuration:
    """The configuration without our file and our lines."""
    changed: Dict[str, Optional[str]] = {file.path: toml.without_ours(file.text) for file in configuration.files}
    changed[drop_in] = None
    return configuration.but(changed)


def overrides(known: Mapping[str, Any], cri_id: str, policy: Policy) -> Tables:
    """What makes handlers of others the wanted ones, in a file that is read after theirs."""
    tables: Tables = {}
    for name in differing(known, policy):
        tables.update(adopting(("plugins", cri_id), name, known[name], policy.entries[name]))
    return tables


def check_read_last(texts: Mapping[str, str], ours: str, handler: str, cri_id: str) -> None:
    """Files of a directory are read by their names: a later one that defines the handler would win over ours.

    texts: {path: text} of the directory's files.
    """
    for path, text in texts.items():
        section = toml.parse(path, text).get("plugins", {}).get(cri_id, {})
        if path > ours and handler in handlers(section):
            raise GpuOpsError(
                "runtime.read_after_ours",
                found="%s defines the handler '%s' and is read after %s" % (path, handler, os.path.basename(ours)),
                wanted="a file of ours that is read last, to take the handler over",
                remedy="give that file a name that sorts before %s, or take the handler out of it"
                       % os.path.basename(ours),
                file=path,
            )
