# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import os
import tempfile
from typing import Any, Dict, Optional, Sequence

from ansible.utils.path import unfrackpath

from ..module_utils.cluster.client import Client
from ..module_utils.cluster.components.gpu_monitoring.component import files
from ..module_utils.core.errors import GpuOpsError
from ..plugin_utils.component_action import ComponentAction, Wanted


class ActionModule(ComponentAction):
    """The component of the same name, and what it holds as files on the controller."""

    def _serve(self, client: Client, wanted: Sequence[Wanted], told: Dict[str, Any], hidden: Sequence[str]) -> None:
        made = {path: text for each in wanted for path, text in _files(each).items()}
        self._refuse_two_words(made)
        super()._serve(client, wanted, told, hidden)
        told["files"] = sorted(made)
        for path, text in made.items():
            before = _read(path)
            if before == text:
                continue
            told["changed"] = True
            told["diff"].append({"before_header": path, "after_header": path, "before": before or "",
                                 "after": text or ""})
            if not self._task.check_mode:
                _write(path, text)

    def _refuse_two_words(self, made: Dict[str, Optional[str]]) -> None:
        """Two clusters of a task may share a directory as long as they want the same in it."""
        known: Dict[str, Optional[str]] = self.__dict__.setdefault("_known_files", {})
        for path, text in made.items():
            if known.setdefault(path, text) != text:
                raise GpuOpsError(
                    "cluster.one_directory_for_two_clusters",
                    found="two clusters of this play that want a different %s" % path,
                    wanted="a directory for each, or the same alerts and dashboard in both",
                    remedy="set `directory` for the hosts of each cluster",
                    option="directory",
                )


def _files(each: Wanted) -> Dict[str, Optional[str]]:
    """{path: text} of what is wanted on the controller; None for a file that is to go."""
    directory = each.parameters["directory"]
    if not directory:
        return {}
    place = unfrackpath(directory, follow=False)
    return {os.path.join(place, name): None if each.is_absent else text
            for name, text in files(each.parameters).items()}


def _read(path: str) -> Optional[str]:
    """The file's text, None where there is none. Raises GpuOpsError."""
    try:
        with open(path, encoding="utf-8") as handle:
            return handle.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, error) from error


def _write(path: str, text: Optional[str]) -> None:
    """Write beside and rename, or remove: Prometheus and Grafana may read at any time. Raises GpuOpsError."""
    beside = ""
    try:
        if text is None:
            os.unlink(path)
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor, beside = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".gpuops-")
        with open(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
        # The programs that read it are other users
        os.chmod(beside, 0o644)
        os.replace(beside, path)
    except OSError as error:
        if os.path.exists(beside):
            os.unlink(beside)
        raise _unusable(path, error) from error


def _unusable(path: str, error: Exception) -> GpuOpsError:
    return GpuOpsError(
        "cluster.monitoring_file_unusable",
        found="%s cannot be read or written: %s" % (path, error),
        wanted="a directory on the controller for text files",
        remedy="name another `directory`; a relative one is looked for in %s" % os.getcwd(),
        option="directory",
    )
