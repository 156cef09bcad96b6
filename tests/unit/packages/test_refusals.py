# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a person reads when a transaction cannot be, whichever capability asked for it."""
from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages import refusals
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Simulation
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.space import (
    ARCHIVES,
    BOOT,
    MIB,
    SYSTEM,
    Space,
)


def test_apt_and_the_sources_that_it_cannot_read_are_quoted() -> None:
    done = Simulation({}, (), "a : Depends: b")
    assert refusals.unsolvable(done, ("http://x 404",), "driver 580.178.04") == Refusal(
        "packages.unsolvable", "apt would refuse the transaction: a : Depends: b | http://x 404",
        "driver 580.178.04 with everything it depends on",
        "see that the host's own sources are complete and can be read (`apt-get update`)")


def test_what_would_go_is_named() -> None:
    assert refusals.removes_others(("docker-ce", "podman")) == Refusal(
        "packages.removes_others", "apt would remove docker-ce, podman", "a transaction that removes nothing of others",
        "see what they conflict with (`apt-get --simulate install`), or choose another version")


def test_held_packages_are_named_with_their_versions_where_they_have_one() -> None:
    assert refusals.held_packages({"a": "1.0-1", "b": ""}, "packages that may be removed") == Refusal(
        "packages.held", "held packages (apt-mark hold): a 1.0-1, b", "packages that may be removed",
        "run `apt-mark unhold a b`")
    assert refusals.held_packages({"a": "1"}, "driver 2 in their place", ", or ask for the version that is "
                                  "held").remedy == "run `apt-mark unhold a`, or ask for the version that is held"


def test_what_is_held_has_no_version_in_its_name_for_who_unholds_it() -> None:
    kept = {"a-kmp-default-1_k6.4.0_9-1": "1_k6.4.0_9-1", "a-kmp-default-2_k6.4.0_9-1": "2_k6.4.0_9-1", "b": "3:4-1"}
    assert refusals.held_packages(kept, "another", manager="zypper").remedy == "run `zypper removelock a-kmp-default b`"


def test_a_file_system_without_room_is_named_with_what_makes_room_there() -> None:
    room = Space({SYSTEM: 1, ARCHIVES: 1, BOOT: 2}, {SYSTEM: 3 * MIB, ARCHIVES: 3 * MIB, BOOT: MIB}, initramfs=20 * MIB)
    done = Simulation({"nvidia-dkms": "1"}, (), download=2 * MIB, unpacked=4 * MIB + 1)
    assert refusals.no_space(room, done, {SYSTEM: " (apt-get clean)"}) == [
        Refusal("packages.no_space", "3 MiB free for /usr", "7 MiB for this transaction",
                "free space on that file system (apt-get clean)"),
        Refusal("packages.no_space", "1 MiB free for /boot", "20 MiB for this transaction",
                "free space on that file system")]
    assert refusals.no_space(None, done, {}) == []
