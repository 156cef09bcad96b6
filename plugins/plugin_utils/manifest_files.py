# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The objects of components as files, for a GitOps controller (Argo CD, Flux) or kubectl to apply."""
from __future__ import annotations

from typing import AbstractSet, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..module_utils.cluster.components.common import Object, shared_of
from ..module_utils.cluster.components.fields import document
from ..module_utils.cluster.components.model import Component, objects
from ..module_utils.core.errors import GpuOpsError

# Of what all components share, and what names the others
SHARED, KUSTOMIZATION = "shared.yaml", "kustomization.yaml"
HEAD = "# Made by gpuops.nvidia.gpu_manifests from the variables of the inventory; what is changed here is lost.\n"

# The variable by which hosts say where the objects of their cluster go
DIRECTORY = "gpu_manifests_dir"

# A component, and its complete parameters
Brought = Tuple[Component, Mapping[str, Any]]


def manifest_files(brought: Sequence[Brought]) -> Dict[str, str]:
    """{name of a file: text}: what all share, one file a component, and a kustomization of them. Pure.

    Raises GpuOpsError where options contradict each other.
    """
    if not brought:
        return {}
    shared = shared_of({component.name: parameters for component, parameters in brought})
    files: Dict[str, List[Object]] = {SHARED: shared}
    for component, parameters in brought:
        files[component.name + ".yaml"] = list(objects(component, parameters))
    kustomization = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
                     "resources": list(files)}
    return {**{name: _documents(made) for name, made in files.items() if made},
            KUSTOMIZATION: _documents([kustomization])}


def one_directory(named: AbstractSet[str]) -> str:
    """The directory that the hosts of a cluster name. Raises GpuOpsError where they name several."""
    if len(named) > 1:
        raise GpuOpsError(
            "cluster.several_directories",
            found="hosts of one cluster name %s" % ", ".join(each or "(none)" for each in sorted(named)),
            wanted="one directory for the objects of a cluster",
            remedy="set gpu_manifests_dir alike for them, or `directory` of the task",
            option="directory",
        )
    return next(iter(named), "")


def refuse_files_of_others(different: Mapping[str, Tuple[Optional[str], Optional[str]]]) -> None:
    """Raises GpuOpsError where a file that is to be written is there and was made by somebody else.

    different: {path: (text now, text then)}.
    """
    found = sorted(path for path, (before, after) in different.items()
                   if after is not None and (before or "").strip() and not str(before).startswith(HEAD))
    if found:
        raise GpuOpsError(
            "cluster.file_of_another",
            found="files that gpu_manifests has not made: %s" % ", ".join(found),
            wanted="a directory for its files alone, or none of their names in it",
            remedy="name another `directory`, or move these files; a kustomization of yours can name the directory",
            option="directory",
        )


def names_of(components: Sequence[Component]) -> List[str]:
    """Every file that manifest_files() may have made of these components."""
    return [SHARED, KUSTOMIZATION, *(component.name + ".yaml" for component in components)]


def _documents(made: Sequence[Mapping[str, Any]]) -> str:
    return HEAD + "".join("---\n" + document(each) for each in made)
