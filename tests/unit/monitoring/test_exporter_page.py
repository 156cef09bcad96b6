# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The pages of these tests have the form of the laboratory's exporter, run on simulated GPUs with the same metrics."""
from __future__ import annotations

import re
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Dict, Iterator, List

import pytest
from exporter_page import Gpu, exporter
from mig_host import MigHost

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.dcgm_exporter import METRICS
from gpulab.parts.registry import workshop

SAMPLE = re.compile(r"^(\w+)\{(.*)\} \S+$", re.MULTILINE)
# What only the real exporter's page has: the simulated board has no such counters, and counts nothing that was not
WINDOW = {"window_size_in_ms", "err_code", "err_msg", "xid"}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The laboratory's page."""
    host = MigHost(workshop().build("silicon"), tmp_path_factory.mktemp("host"), "h100-sxm-hgx", 2)
    counters = host.directory / "metrics.csv"
    counters.write_text("".join("%s, %s, %s\n" % (each["field"], each["type"], each["help"]) for each in METRICS))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % probe.getsockname()[1]
    program = workshop().build("dcgm") / "bin" / "dcgm-exporter"
    with (host.directory / "exporter.log").open("w") as log:
        process = subprocess.Popen([str(program), "-f", str(counters), "-a", address], stdout=log,
                                   stderr=subprocess.STDOUT, env=dict(host.environment(), NODE_NAME="well"))
    try:
        yield fetched(address, host.directory / "exporter.log")
    finally:
        process.terminate()
        process.wait(30)
        host.close()


def fetched(address: str, log: Path) -> str:
    for _attempt in range(100):
        try:
            with urllib.request.urlopen("http://%s/metrics" % address, timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text())


def label_names(page: str) -> Dict[str, List[str]]:
    """{metric: names of its labels, in order}, of the last series of each."""
    return {name: re.findall(r'(\w+)="', labels) for name, labels in SAMPLE.findall(page)}


def test_series_have_the_same_labels_in_the_same_order(theirs: str) -> None:
    ours, seen = label_names(exporter("well", [Gpu(0), Gpu(1)])), label_names(theirs)
    common = set(ours) & set(seen)
    assert len(common) > 20
    for name in common:
        assert [label for label in ours[name] if label not in WINDOW] == (
            [label for label in seen[name] if label not in WINDOW]), name


def test_metrics_are_declared_alike(theirs: str) -> None:
    ours = exporter("well", [Gpu(0)])
    declared = set(re.findall(r"^# TYPE \w+ \w+$", theirs, re.MULTILINE)) - {"# TYPE gpulab_stand_in gauge"}
    assert declared <= set(re.findall(r"^# TYPE \w+ \w+$", ours, re.MULTILINE)) and len(declared) > 20
