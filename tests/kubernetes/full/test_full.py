"""What of a full cluster can be seen without one; `python -m tests.kubernetes.full` is the cluster itself."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.full import cgroups, config
from tests.kubernetes.full.image import Image, write_archive


def _read(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {m.name: archive.extractfile(m).read() for m in archive.getmembers()}  # type: ignore[union-attr]


def test_an_archive_holds_what_docker_save_would_write(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    first = Image(
        "local/a:latest",
        links={"bin": "usr/bin", "var/run": "/run"},
        folders={"usr": 0o755, "var/tmp": 0o1777},
        env={"A": "1"},
        cwd="/w",
    )
    second = Image("local/b:latest", programs={"bin/p": program}, command=["/bin/p", "x"])
    write_archive(tmp_path / "images.tar", [first, second])
    blobs = _read(tmp_path / "images.tar")
    manifest = json.loads(blobs["manifest.json"])
    assert [m["RepoTags"] for m in manifest] == [["local/a:latest"], ["local/b:latest"]]
    members: list[dict[str, tarfile.TarInfo]] = []
    for entry in manifest:
        found = json.loads(blobs[entry["Config"]])
        (name,) = entry["Layers"]
        assert found["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(blobs[name]).hexdigest()}"]
        assert found["os"] == "linux"
        with tarfile.open(fileobj=io.BytesIO(blobs[name])) as layer:
            members.append({m.name: m for m in layer.getmembers()})
    assert list(members[0]) == ["usr", "var", "var/tmp", "bin", "var/run"]  # a folder before what lies in it
    assert (members[0]["bin"].issym(), members[0]["bin"].linkname) == (True, "usr/bin")
    assert members[0]["var/tmp"].mode == 0o1777
    assert (members[1]["bin/p"].mode, members[1]["bin/p"].size) == (0o755, 4)
    told = [json.loads(blobs[m["Config"]])["config"] for m in manifest]
    assert (told[0]["Env"], told[0]["WorkingDir"]) == (["A=1"], "/w")
    assert told[1]["Cmd"] == ["/bin/p", "x"]


def test_a_directory_within_another_is_bound_after_it() -> None:
    found = config.spec({"mounts": [{"destination": "/proc"}], "root": {}}, ["/opt/x/env", "/usr", "/opt"])
    assert [m["destination"] for m in found["mounts"]] == ["/proc", "/usr", "/opt", "/opt/x/env"]
    assert all("ro" in m["options"] for m in found["mounts"][1:])


def test_a_lease_lasts_for_some_heartbeats_and_nodes_differ_in_addresses(tmp_path: Path) -> None:
    nodes = [config.kubelet(n, tmp_path, f"c{n}", 0.5) for n in (1, 2)]
    assert [n["nodeLeaseDurationSeconds"] for n in nodes] == [2, 2]
    assert nodes[0]["address"] != nodes[1]["address"]
    subnets = [config.cni(n, tmp_path)["plugins"][0]["ipam"]["ranges"][0][0]["subnet"] for n in (1, 2)]
    assert subnets == ["10.244.1.0/24", "10.244.2.0/24"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Looks like /sys/fs/cgroup."""
    for name in ("pids", "cpuset"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text("1\n")
    (tmp_path / "cpuset/cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset/cpuset.mems").write_text("0\n")
    (tmp_path / "cpu").symlink_to("cpuset")
    (tmp_path / "none").mkdir()
    return tmp_path


def test_a_node_s_cgroup_is_made_in_every_hierarchy_and_holds_what_is_below_it(tree: Path) -> None:
    entry = cgroups.make("node", tree)
    assert entry == tree / "pids/node/daemons/cgroup.procs"
    assert (tree / "cpuset/node/cpuset.cpus").read_text() == "0-1\n"
    inner = tree / "cpuset/node/kubepods/pod1"
    inner.mkdir(parents=True)
    (inner / "cgroup.procs").write_text("0\n12\n13\n")
    entry.write_text("13\n14\n")
    assert cgroups.pids("node", tree) == {12, 13, 14}
    assert cgroups.pids("other", tree) == set()
    assert "lacks cpuacct, memory, systemd." in cgroups.missing(tree)  # `cpu` is there, if only as a link


def test_all_processes_of_a_cgroup_are_killed_and_it_is_removed(tree: Path) -> None:
    (tree / "pids/node/inner").mkdir(parents=True)
    cgroups.end("other", root=tree)  # it was never there
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        listed = tree / "pids/node/inner/cgroup.procs"
        listed.write_text(f"{child.pid}\n")
        with pytest.raises(TimeoutError, match=f"there are processes .{child.pid}."):
            cgroups.end(
                "node", seconds=0.0, root=tree
            )  # files, as no real cgroup holds them, keep it from being removed
        assert child.wait(10) == -9
        listed.unlink()
    cgroups.end("node", root=tree)
    assert not (tree / "pids/node").exists()


def test_containerd_is_told_its_paths() -> None:
    told: Any = config.containerd(Path("/k/bin"), Path("/n/1"))
    assert 'base_runtime_spec = "/n/1/spec.json"' in told
    assert 'bin_dir = "/k/cni"' in told
    assert told.index("version = 2") < told.index("[grpc]")  # TOML: what is outside of tables comes first
