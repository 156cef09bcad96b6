# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files of text on the controller that others read: compared first, then written beside and renamed, or removed."""
from __future__ import annotations

import os
import tempfile
from typing import Dict, List, Mapping, Optional, Tuple

from ..module_utils.core.errors import GpuOpsError

# {path: text}; None for a file that is to go
Files = Dict[str, Optional[str]]
# The programs that read them are other users
_MODE = 0o644


def claim(made: Files, of_others: Files, option: str) -> None:
    """Note what one cluster wants in of_others, which has what the clusters before it want.

    Raises GpuOpsError where two clusters want a different text in one place. option: by which each names a place.
    """
    for path, text in made.items():
        if of_others.setdefault(path, text) != text:
            raise GpuOpsError(
                "cluster.one_directory_for_two_clusters",
                found="two clusters of this play that want a different %s" % path,
                wanted="a directory for each, or the same text for both",
                remedy="set `%s` for the hosts of each cluster" % option,
                option=option,
            )


def changes(wanted: Files) -> Dict[str, Tuple[Optional[str], Optional[str]]]:
    """{path: (text now, text then)} of the files that are not as they are wanted. Raises GpuOpsError."""
    found = {path: (_read(path), text) for path, text in wanted.items()}
    return {path: (before, after) for path, (before, after) in found.items() if before != after}


def diff_of(different: Mapping[str, Tuple[Optional[str], Optional[str]]]) -> List[Dict[str, str]]:
    """Changes as entries of Ansible's diff list."""
    return [{"before_header": path, "after_header": path, "before": before or "", "after": after or ""}
            for path, (before, after) in different.items()]


def carry_out(wanted: Files) -> None:
    """Write beside and rename, or remove: the programs may read at any time. Raises GpuOpsError."""
    for path, text in wanted.items():
        try:
            if text is None:
                os.unlink(path)
            else:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                write(path, text, _MODE)
        except OSError as error:
            raise _unusable(path, error) from error


def write(path: str, text: str, mode: int) -> None:
    """Write beside and rename: who reads it sees the old text or the new. Raises OSError, with nothing left behind."""
    descriptor, beside = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".gpuops-")
    try:
        with open(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
        os.chmod(beside, mode)
        os.replace(beside, path)
    except OSError:
        os.unlink(beside)
        raise


def _read(path: str) -> Optional[str]:
    """The file's text, None where there is none."""
    try:
        with open(path, encoding="utf-8") as handle:
            return handle.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, error) from error


def _unusable(path: str, error: Exception) -> GpuOpsError:
    return GpuOpsError(
        "cluster.file_unusable",
        found="%s cannot be read or written: %s" % (path, error),
        wanted="a directory on the controller for text files",
        remedy="name another `directory`; a relative one is looked for in %s" % os.getcwd(),
        option="directory",
    )
