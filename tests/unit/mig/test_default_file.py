# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The file that nvidia-mig-parted brings, on every board of the simulated silicon."""
from __future__ import annotations

from functools import lru_cache
from typing import Any, Dict, List, Tuple

import pytest
from mig_boards import WITH_MIG, board, contents, default_file, policy, profiles

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.configuration import read
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.policy import Policy
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.target import targets

# (code of the refusal or '', MIG mode, instances, whether a note says that a name is another driver's)
Outcome = Tuple[str, bool, Any, bool]


def labels() -> Dict[str, List[Dict[str, Any]]]:
    found: Dict[str, List[Dict[str, Any]]] = default_file()["mig-configs"]
    return found


def that_count(label: str, name: str) -> List[Dict[str, Any]]:
    """The entries of a label that the board's device id lets count."""
    found = []
    for each in labels()[label]:
        filters = each.get("device-filter", [])
        filters = [filters] if isinstance(filters, str) else filters
        if not filters or board(name).device_id.lower() in [text.lower() for text in filters]:
            found.append(each)
    return found


@lru_cache(maxsize=None)
def of_file(label: str) -> Policy:
    return policy(config=label, configs=default_file())


def outcome(name: str, wanted: Policy) -> Outcome:
    gpu = board(name)
    try:
        found, notes = targets(wanted, [gpu])
    except GpuOpsError as error:
        return error.code, False, None, False
    return "", found[gpu.uuid].enabled, contents(found[gpu.uuid], gpu), bool(notes)


def test_it_has_81_labels_and_all_are_read() -> None:
    found = read(default_file())
    assert len(found) == 81 and found.keys() == labels().keys()


@pytest.mark.parametrize("name", WITH_MIG)
def test_each_label_gives_what_it_says_or_is_refused(name: str) -> None:
    own = {profile.name for profile in profiles(name)}
    seen = set()
    for label in labels():
        found = outcome(name, of_file(label))
        entries = that_count(label, name)
        wanted = entries[-1].get("mig-devices", {}) if entries else {}
        if not entries:
            assert found[0] == "mig.layout_for_no_gpu", label
        elif wanted.keys() <= own:
            assert found == ("", entries[-1]["mig-enabled"], sorted(
                profile for profile, count in wanted.items() for _each in range(count)), False), label
            seen.update(wanted)
        else:
            assert found[0] == "mig.profile_unknown" or found[3], label
    assert seen == own


@pytest.mark.parametrize("name", WITH_MIG)
def test_a_label_of_the_boards_own_profiles_gives_the_same_without_the_file(name: str) -> None:
    own = {profile.name for profile in profiles(name)}
    compared = []
    for label in labels():
        entries = that_count(label, name)
        if entries and entries[-1].get("mig-devices", {}).keys() <= own:
            assert outcome(name, policy(config=label)) == outcome(name, of_file(label)), label
            compared.append(label)
    assert {"all-disabled", "all-enabled", "all-balanced"} < set(compared)
