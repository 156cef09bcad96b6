# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Alert rules and dashboard as files on the controller, for a Prometheus and a Grafana that read directories."""
from __future__ import annotations

import os
import tempfile
from typing import Any, Dict, Mapping, Optional, Tuple

from ansible.utils.path import unfrackpath

from ..module_utils.cluster.components.gpu_monitoring.component import files
from ..module_utils.core.errors import GpuOpsError

# {path: text}; None for a file that is to go
Files = Dict[str, Optional[str]]
# The programs that read them are other users
MODE = 0o644


def wanted_files(parameters: Mapping[str, Any], absent: bool, of_others: Files) -> Files:
    """What one cluster wants on the controller.

    parameters: complete options. of_others: what the clusters before it want there; takes up what this one wants.
    Raises GpuOpsError where two clusters want a different text in one place.
    """
    if not parameters["directory"]:
        return {}
    directory = unfrackpath(parameters["directory"], follow=False)
    made: Files = {os.path.join(directory, name): None if absent else text for name, text in files(parameters).items()}
    for path, text in made.items():
        if of_others.setdefault(path, text) != text:
            raise GpuOpsError(
                "cluster.one_directory_for_two_clusters",
                found="two clusters of this play that want a different %s" % path,
                wanted="a directory for each, or the same alerts and the same dashboard for both",
                remedy="set `directory` for the hosts of each cluster",
                option="directory",
            )
    return made


def changes(wanted: Files) -> Dict[str, Tuple[Optional[str], Optional[str]]]:
    """{path: (text now, text then)} of the files that are not as they are wanted. Raises GpuOpsError."""
    found = {path: (_read(path), text) for path, text in wanted.items()}
    return {path: (before, after) for path, (before, after) in found.items() if before != after}


def carry_out(wanted: Files) -> None:
    """Write beside and rename, or remove: the programs may read at any time. Raises GpuOpsError."""
    for path, text in wanted.items():
        try:
            if text is None:
                os.unlink(path)
            else:
                _write(path, text)
        except OSError as error:
            raise _unusable(path, error) from error


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor, beside = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".gpuops-")
    try:
        with open(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
        os.chmod(beside, MODE)
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
        "cluster.monitoring_file_unusable",
        found="%s cannot be read or written: %s" % (path, error),
        wanted="a directory on the controller for text files",
        remedy="name another `directory`; a relative one is looked for in %s" % os.getcwd(),
        option="directory",
    )
