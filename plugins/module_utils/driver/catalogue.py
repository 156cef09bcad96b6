# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What NVIDIA's and the distributions' drivers are made of, on every system: tables and pure functions.

  architectures   which kernel module which GPU takes, by PCI device id
  branches        the driver's branches: kind, end of life, CUDA, and the branches with which names changed
  systems         the distributions, their families and package managers
  repositories    directories, keys and definitions of repositories
  sets            the words: what is wanted, what a set is, how a package is tied to the driver's version
  debian, ubuntu, enterprise, suse, amazon
                  names of packages, a family each
  guests          the guest driver of NVIDIA's vGPU software
  peers           GPUDirect Storage, GDRCopy: modules beside the driver's
  companions      fabric manager, switch libraries, subnet manager, IMEX
  resolver        all of it together
  names           what belongs to a driver that is installed, and versions of packages

Always true of a set: it names the module's package and user space, never a metapackage alone; every package of it has
the driver's exact version, but those that have one of their own; and all of them are of one source.
"""
from __future__ import annotations

from .tables.architectures import (
    EITHER,
    GPU_ARCHITECTURES,
    GpuArchitecture,
    ModuleChoice,
    architecture_of,
    choose_module,
)
from .tables.branches import FIRST_COHERENT_MODE, FIRST_OPEN_ONLY, LONG_TERM_BRANCH, notes_on
from .tables.companions import OF_NVLINK5, is_companion, option_of, without_companions
from .tables.enterprise import MODULES as EL_MODULES
from .tables.enterprise import SIGNER as SIGNER_OF_NVIDIA
from .tables.enterprise import STREAM, is_built_here, is_of_red_hat
from .tables.enterprise import stream as stream_of
from .tables.enterprise import vendor as vendor_of
from .tables.guests import is_guest
from .tables.guests import module as module_of_guest
from .tables.headers import KERNEL_METAPACKAGE, brings_headers, header_packages, headers_of, kernel_packages
from .tables.names import (
    FAMILY,
    FAMILY_EXPRESSIONS,
    FAMILY_GLOBS,
    ONLY_AT_NVIDIA,
    ONLY_IN_DISTRIBUTION,
    PREBUILT_MODULES,
    branch_wanted,
    family,
    is_driver_version,
    is_foreign_rpm,
    is_of_driver,
    matches,
    newest,
    upstream,
)
from .tables.peers import PACKAGES as PEER_PACKAGES
from .tables.repositories import REPOSITORY_DIRECTORIES, REPOSITORY_KEYS, RepositoryKey, default_key, default_repository
from .tables.resolver import (
    BUILDERS,
    Resolution,
    builders,
    builders_first,
    lags,
    leaving,
    modules_package,
    package_set,
    refuse_way,
    resolve,
    serves,
    ways,
)
from .tables.sets import DKMS, PRECOMPILED, PackageSet, Wanted
from .tables.suse import excluded, generation_of, instead_of, is_of_kernel
from .tables.systems import System, is_driven, system_of

__all__ = (
    "BUILDERS", "DKMS", "EITHER", "EL_MODULES", "FAMILY", "FAMILY_EXPRESSIONS", "FAMILY_GLOBS",
    "FIRST_COHERENT_MODE", "FIRST_OPEN_ONLY", "GPU_ARCHITECTURES", "GpuArchitecture", "KERNEL_METAPACKAGE",
    "LONG_TERM_BRANCH", "ModuleChoice", "OF_NVLINK5", "ONLY_AT_NVIDIA", "ONLY_IN_DISTRIBUTION", "PEER_PACKAGES",
    "PREBUILT_MODULES", "PRECOMPILED", "PackageSet", "REPOSITORY_DIRECTORIES", "REPOSITORY_KEYS", "RepositoryKey",
    "Resolution", "SIGNER_OF_NVIDIA", "STREAM", "System", "Wanted", "architecture_of", "branch_wanted",
    "brings_headers", "builders", "builders_first", "choose_module", "default_key", "default_repository",
    "excluded", "family", "generation_of", "header_packages", "headers_of", "instead_of", "is_built_here",
    "is_companion", "is_driven", "is_driver_version", "is_foreign_rpm", "is_guest", "is_of_driver", "is_of_kernel",
    "is_of_red_hat", "kernel_packages", "lags", "leaving", "matches", "module_of_guest", "modules_package", "newest",
    "notes_on", "option_of", "package_set", "refuse_way", "resolve", "serves", "stream_of", "system_of", "upstream",
    "vendor_of", "ways", "without_companions",
)
