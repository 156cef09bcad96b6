# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Campaigns: a seed is a case, a case is run once, and one that failed says how to repeat it."""
from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import api_proxy
import host_cuts
import pytest
import request_faults
import soak
import warm_ansible
import workspace
from campaigns import Campaign


class Toy:
    """A campaign whose odd seeds fail, and what becomes of it."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GPUOPS_CACHE", str(tmp_path))
        self.worlds = 0
        self.ran: List[int] = []
        self.results: soak.Results = {}
        self.options = Namespace(seed=1, count=4, again=False, results=tmp_path / "results.json")

    @contextlib.contextmanager
    def world(self, scratch: Path) -> Iterator[int]:
        self.worlds += 1
        yield self.worlds

    def case(self, world: int, seed: int) -> List[str]:
        self.ran.append(seed)
        assert seed % 2 == 0, "odd"
        if seed == 4:
            raise OSError("the world ended")
        return ["even in world %d" % world]

    def run(self, deadline: float = 1e12) -> List[str]:
        campaign = Campaign("a toy", 9, self.world, self.case)
        return list(soak.run("toy", campaign, self.options, self.results, deadline))


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    return Toy(tmp_path, monkeypatch)


def test_every_case_has_a_result_and_is_not_run_again(toy: Toy) -> None:
    told = toy.run()
    assert [line.splitlines()[0].split(" (")[0] for line in told] == [
        "toy 1: FAILED", "toy 2: passed", "toy 3: FAILED", "toy 4: FAILED"]
    assert [case["passed"] for case in toy.results["toy"].values()] == [False, True, False, False]
    assert "the world ended" in toy.results["toy"]["4"]["error"]
    assert toy.options.results.is_file()
    assert (toy.run(), toy.ran) == ([], [1, 2, 3, 4])


def test_only_what_was_not_judged_ends_a_world(toy: Toy) -> None:
    toy.options.seed, toy.options.count = 1, 3
    toy.run()
    assert toy.worlds == 1
    toy.options.seed = 4
    toy.run()
    assert toy.worlds == 3


def test_no_case_begins_after_the_time(toy: Toy) -> None:
    assert toy.run(deadline=1e-9) == ["toy: the time is over; 0 of 4 cases have a result"]
    assert toy.ran == []


def test_a_seed_draws_the_same_cut_again_and_seeds_reach_every_event() -> None:
    pace = (2.0, 2.5, 40.0)
    cuts = [host_cuts.draw(seed, "install", pace) for seed in range(100)]
    assert cuts == [host_cuts.draw(seed, "install", pace) for seed in range(100)]
    assert {cut.events for cut in cuts} == {0, 1, 2}
    assert {cut.kind for cut in cuts} == set(host_cuts.KINDS)
    for cut in cuts:
        assert 0 <= cut.seconds <= (2.0, 0.5, 37.5)[cut.events]


READS = [("GET", "/api/v1/nodes?limit=500"), ("GET", "/api/v1/nodes/a"), ("POST", "/reviews"), ("POST", "/reviews")]
REQUESTS = [*READS, ("PATCH", "/api/v1/nodes/a"), ("DELETE", "/api/v1/namespaces/gpuops"), *READS * 30]


EVERYTHING = list(range(1, len(REQUESTS) + 1))
# Conflicts are for who writes, and 410 for who lists
MET = {"409": [5, 6], "410": [number for number in EVERYTHING if "limit" in REQUESTS[number - 1][1]]}


def test_the_cases_of_requests_together_reach_every_request_by_every_kind() -> None:
    """In one cluster: in another one a number is another request."""
    for kind in request_faults.KINDS:
        cases = [case for case in request_faults.CASES if case.kind == kind and not case.sampled]
        found = [number for case in cases for number in case.numbers(REQUESTS, 0)]
        assert sorted(found) == MET.get(kind.name, EVERYTHING), kind.name
        assert len({case.shared for case in cases}) == 1
    assert len(set(map(str, request_faults.CASES))) == len(request_faults.CASES)


def test_each_kind_has_a_sample_in_the_other_cluster_and_samples_together_are_every_request() -> None:
    other = {case.kind: not case.shared for case in request_faults.CASES if not case.sampled}
    samples = [case for case in request_faults.CASES if case.sampled]
    assert [(case.kind, case.shared) for case in samples] == list(other.items())
    assert set(other.values()) == {True, False}
    for case in samples:
        found = [number for drawn in range(case.kind.sample) for number in case.numbers(REQUESTS, drawn)]
        assert sorted(found) == MET.get(case.kind.name, EVERYTHING), str(case)


def test_the_page_tells_how_many_cases_a_campaign_of_requests_has() -> None:
    page = (workspace.REPOSITORY / "docs" / "soak.md").read_text()
    assert "| `requests` | %d |" % len(request_faults.CASES) in page


class Kept:
    """An ansible-playbook that is kept, and one that starts, with the same playbook and tasks that leave traces."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory, self.traces, self.results = tmp_path, tmp_path / "traces", tmp_path / "results"
        playbook = tmp_path / "play.json"
        playbook.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [
            {"ansible.builtin.assert": {"that": "before is not defined"}},
            {"ansible.builtin.set_fact": {"before": "{{ query('ansible.builtin.pipe', pipe) }}"}},
            {"ansible.builtin.fail": {"msg": "as told"}, "when": "before == ['fail']"}]}]))
        pipe = "echo $PPID $$ >> %s; cat %s" % (self.traces, tmp_path / "said")
        self.words = [str(workspace.venv() / "bin" / "ansible-playbook"), "--inventory", "a,b", str(playbook),
                      "--connection", "local", "--extra-vars", json.dumps({"pipe": pipe})]
        self.environment = {**os.environ, "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"}
        self.kept = warm_ansible.Controller(self.words, self.environment, tmp_path, {"json": {"constant": 1.0}})

    def run(self, said: str) -> Tuple[int, List[List[str]]]:
        """How a run ends, and what it tells of each task."""
        (self.directory / "said").write_text(said)
        code = self.kept.start(self.results, self.directory / "calls").wait()
        return code, told(self.results.read_text())

    def started(self) -> Tuple[int, List[List[str]]]:
        done = subprocess.run(self.words, env=self.environment, stdout=subprocess.PIPE, text=True, check=False)
        return done.returncode, told(done.stdout)


def told(output: str) -> List[List[str]]:
    """What became of each task on each host."""
    report = json.loads(output)
    return [[str(result.get("msg", result.get("ansible_facts"))) for result in task["hosts"].values()]
            for play in report["plays"] for task in play["tasks"]]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.kept.close()
    # What a killed run had begun ends by itself, or never
    begun = [line.split()[1] for line in made.traces.read_text().splitlines()]
    until = time.monotonic() + 10
    while any(map(runs, begun)):
        assert time.monotonic() < until, "still there: %s" % [pid for pid in begun if runs(pid)]
        time.sleep(0.01)


def runs(pid: str) -> bool:
    """Whether there is such a process; one whose parent has not asked for its end has ended all the same."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_kept_ansible_playbook_ends_as_one_that_starts_run_after_run(kept: Kept) -> None:
    assert [kept.run("well") for _each in range(3)] == [kept.started()] * 3
    assert kept.run("fail") == kept.started()
    assert (kept.run("fail")[0], kept.run("well")[0]) == (2, 0)


def test_a_kept_ansible_playbook_runs_again_once_a_run_was_killed(kept: Kept) -> None:
    well = kept.run("well")
    (kept.directory / "said").unlink()
    os.mkfifo(kept.directory / "said")
    kept.traces.unlink()
    running = kept.kept.start(kept.results, kept.directory / "calls")
    while not (kept.traces.exists() and kept.traces.read_text()):
        time.sleep(0.01)
    assert str(running.pid) in kept.traces.read_text().split()
    os.kill(running.pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    (kept.directory / "said").write_text("")
    (kept.directory / "said").unlink()
    assert kept.run("well") == well


# Those that count are 1, 2, 3, 4, 5 and 6
SENT = [("GET", "/a"), ("GET", "/a"), ("POST", "/reviews"), ("POST", "/reviews"), ("GET", "/b?limit=5"),
        ("GET", "/b?limit=5"), ("PATCH", "/a"), ("DELETE", "/a")]


@pytest.mark.parametrize("kind, number, lasting, spoiled", [
    ("", 1, False, []), ("503", 2, False, [2]), ("503", 3, False, [3]), ("503", 4, True, [4, 5, 6, 7]),
    ("409", 2, False, []), ("409", 6, False, [7]), ("410", 1, False, []), ("410", 4, False, [4]),
    ("lost", 5, False, [6]), ("500", 0, False, [0, 2, 4, 6, 7]), ("409", 0, False, [6]),
])
def test_a_proxy_counts_what_is_asked_again_as_one(
        kind: str, number: int, lasting: bool, spoiled: List[int]) -> None:
    """Who waits for something asks for it again, and not equally often in each run."""
    proxy = api_proxy.Proxy(None)  # type: ignore[arg-type]
    proxy.spoil(kind, number, lasting)
    found = [place for place, request in enumerate(SENT) if proxy.takes(*request)]
    assert (found, proxy.met, len(proxy.seen)) == (spoiled, bool(spoiled), 6)
    proxy.spoil("")
    assert (proxy.takes(*SENT[0]), proxy.met, len(proxy.seen)) == (False, False, 1)


def test_objects_are_compared_without_what_is_new_each_time() -> None:
    def made(time: str, manager: str = "gpuops", label: str = "a") -> Dict[str, Any]:
        return {"kind": "configmaps", "data": {"a": "b"}, "status": {"seen": time}, "metadata": {
            "name": "x", "namespace": "y", "uid": time, "resourceVersion": time, "creationTimestamp": time,
            "labels": {"l": label}, "managedFields": [
                {"manager": "kubectl", "operation": "Update", "time": time},
                {"manager": manager, "operation": "Apply", "time": time},
                {"manager": "kubelet", "operation": "Update", "subresource": "status", "time": time}]}}

    def apart(*arguments: str) -> List[str]:
        return list(request_faults.differences({"x": request_faults.steady(made("1"))},
                                               {"x": request_faults.steady(made(*arguments))}))

    assert (apart("2"), apart("2", "other"), apart("2", "gpuops", "b")) == (
        [], ["x: metadata: managedFields"], ["x: metadata: labels: l"])
    assert request_faults.differences({"a": 1}, {"b": {"c": 1}}) == {"a": (1, None), "b": (None, {"c": 1})}


def test_what_a_run_says_at_its_end_names_what_to_do() -> None:
    well = request_faults.WELL_TOLD
    assert well.search("Found: no answer. Wanted: one. Do: look. [cluster.no_answer]")
    assert not well.search("HTTPError 503") and not well.search("Found: x. Wanted: y. [cluster.no_answer]")


def test_it_begins_as_people_begin_it() -> None:
    """The gates' own environment has the collection on its path; a shell has not."""
    bare = {name: os.environ[name] for name in ("HOME", "PATH", "GPUOPS_CACHE") if name in os.environ}
    told = subprocess.run([sys.executable, soak.__file__, "--help"], env=bare, text=True, capture_output=True,
                          check=False)
    assert told.returncode == 0 and "cuts (67)" in told.stdout, told.stderr
