# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plans that a person would read alike have one digest, and no others do."""
from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Dict
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from many_plans import BUSY, REBOOTING, UPGRADE

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import (
    Disruption,
    Kept,
    Plan,
    Step,
    digest,
    render,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.fleet.alike import common, devices_numbered, plan_in

ONE, OTHER, THIRD = ("GPU-%s" % UUID(int=number + (7 << 96)) for number in (1, 2, 3))


def of_devices(*uuids: str) -> Plan:
    """Divides these, one after another, and says so in a file."""
    steps = [Step("mig", "mig.divide", "0000:%02x:00.0" % place, "It is whole.", Disruption.gpu_reset,
                  parameters={"uuid": uuid}) for place, uuid in enumerate(uuids)]
    layout = "".join("restore %s 9:0\n" % uuid for uuid in uuids)
    return Plan(steps=(*steps, Step("mig", "file.write", "/etc/layout", "It is another.", change={
        "before": None, "after": layout})))


def key(plan: Plan, *of: Any) -> str:
    return digest(common(plan.to_dict(), *of))


@pytest.mark.parametrize("same", [
    {"host": "b"}, {"observation": "read"}, {"policy": "asked"}, {"policies": {"driver": "asked"}},
    {"leaving": {"x": ("team/pod",)}}, {"foretold": {"driver": {"loaded": {"before": "", "after": "1"}}}},
])
def test_what_is_each_host_s_own_makes_no_other_plan(same: Dict[str, Any]) -> None:
    assert key(replace(UPGRADE, host="a")) == key(replace(UPGRADE, **same))


STEP = UPGRADE.steps[1]


@pytest.mark.parametrize("other", [
    {"steps": UPGRADE.steps[:2]}, {"steps": UPGRADE.steps[::-1]}, {"notes": ("Its BIOS is old.",)},
    {"requirements": REBOOTING.requirements}, {"refusals": (BUSY,)}, {"kept": (Kept("dkms", "others need it"),)},
    {"complete": False}, {"waiting": ("mig",)}, {"returns_to": {STEP.id: {"how": "none", "why": "no packages"}}},
    *({"steps": (UPGRADE.steps[0], replace(STEP, **{name: value}), UPGRADE.steps[2])} for name, value in (
        ("subject", "driver 595.91.08"), ("why", "another reason"), ("disruption", Disruption.reboot),
        ("change", {"before": {}, "after": {}}), ("parameters", {"manager": "dnf"}), ("reversible", False),
        ("depends_on", (UPGRADE.steps[0].id,)))),
])
def test_what_a_person_would_read_otherwise_makes_another_plan(other: Dict[str, Any]) -> None:
    assert key(UPGRADE) != key(replace(UPGRADE, **other))


def test_what_is_not_done_and_what_was_begun_make_another_plan() -> None:
    assert len({key(UPGRADE), key(UPGRADE, [STEP.id]), key(UPGRADE, (), [STEP.id])}) == 3


def test_devices_are_told_by_their_place_and_not_by_their_uuid() -> None:
    assert key(of_devices(ONE, OTHER)) == key(of_devices(OTHER, THIRD))
    assert "GPU-#2" in json.dumps(common(of_devices(ONE, OTHER).to_dict()))


def test_two_devices_are_not_one() -> None:
    assert key(of_devices(ONE, OTHER)) != key(of_devices(ONE, ONE))
    assert key(of_devices(ONE, OTHER, ONE)) != key(of_devices(ONE, OTHER, OTHER))


def test_a_word_that_looks_like_a_number_of_ours_is_no_device() -> None:
    assert key(Plan(notes=("GPU-#1 is hot.",))) != key(Plan(notes=("%s is hot." % ONE,)))
    assert key(Plan(notes=("GPU-#1", ONE))) != key(Plan(notes=(ONE, ONE)))


names = st.sampled_from([ONE, OTHER, THIRD, ONE.replace("GPU", "MIG"), "0000:17:00.0", "driver", "GPU-1"])
texts = st.lists(names, max_size=3).map(" ".join)
data = st.recursive(texts | st.none() | st.integers(0, 3), lambda each: st.lists(each, max_size=3) | st.dictionaries(
    st.text("ab", min_size=1), each, max_size=3), max_leaves=12)


@given(data)
def test_nothing_but_the_names_of_devices_is_lost(read: Any) -> None:
    """What is numbered alike becomes the same by naming devices again, one name a number."""
    numbers = numbers_of(read)
    found, devices = devices_numbered(read)
    assert devices == len(numbers)
    text = json.dumps(found, sort_keys=True)
    for uuid, number in numbers.items():
        text = text.replace(number, uuid)
    assert text == json.dumps(read, sort_keys=True)


def numbers_of(read: Any) -> Dict[str, str]:
    """{device: its number}, in the order in which they come in sorted data."""
    text = json.dumps(read, sort_keys=True)
    kinds = {kind: sorted((uuid for uuid in (ONE, OTHER, THIRD, ONE.replace("GPU", "MIG"))
                           if uuid.startswith(kind) and uuid in text), key=text.index) for kind in ("GPU", "MIG")}
    return {uuid: "%s-#%d" % (kind, place) for kind, uuids in kinds.items() for place, uuid in enumerate(uuids, 1)}


@given(st.permutations([ONE, OTHER, THIRD]))
def test_hosts_with_other_devices_have_one_plan(order: Any) -> None:
    assert key(of_devices(*order)) == key(of_devices(ONE, OTHER, THIRD))


def test_what_is_told_reads_as_the_plan_does() -> None:
    own = replace(UPGRADE, host="host")
    assert render(replace(plan_in(common(own.to_dict())), host="host")) == render(own)


def test_no_password_of_a_url_is_in_it() -> None:
    """Whoever wrote it there: options are hidden on the host, texts of others are not known."""
    plan = Plan(steps=(replace(STEP, why="From https://me:s3cret@mirror.example/x, http://t0ken@mirror.example."),),
                refusals=(replace(BUSY, found="ftp://u:s3cret@host is gone"),),
                notes=("proxy http://u:s3cret@proxy:3128",
                       "https://mirror.example/y?arch=x86_64&X-Amz-Signature=s3cret is gone"))
    text = json.dumps(common(plan.to_dict()))
    assert "s3cret" not in text and "t0ken" not in text and "mirror.example/x" in text
    assert "y?arch=x86_64&" in text and " is gone" in text
