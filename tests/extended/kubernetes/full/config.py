"""Configuration of a node's daemons: containerd, its network plugin, and the kubelet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.extended.kubernetes import network
from tests.extended.kubernetes.kubelet import PORT

Json = dict[str, Any]
SOCKET = "/run/containerd/containerd.sock"  # each node has a /run of its own
PAUSE = "local/pause:latest"  # image of the process that holds a pod's namespaces


def containerd(programs: Path, folder: Path) -> str:
    """Return containerd's configuration as TOML. `folder`: of this start of the node, with spec.json and cni/ in it."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    text = {
        "": {"version": 2, "root": f"{folder}/containerd", "state": "/run/containerd"},
        "grpc": {"address": SOCKET},
        cri: {
            "sandbox_image": PAUSE,
            "disable_apparmor": True,
            "restrict_oom_score_adj": True,  # lowering the score needs a capability that root may lack in a container
        },
        f"{cri}.cni": {"bin_dir": str(programs.parent / "cni"), "conf_dir": f"{folder}/cni"},
        f"{cri}.containerd": {"snapshotter": "overlayfs", "default_runtime_name": "runc"},
        f"{cri}.containerd.runtimes.runc": {
            "runtime_type": "io.containerd.runc.v2",
            "base_runtime_spec": f"{folder}/spec.json",
        },
        f"{cri}.containerd.runtimes.runc.options": {"BinaryName": str(programs / "runc"), "SystemdCgroup": False},
    }
    lines = ['disabled_plugins = ["io.containerd.internal.v1.opt"]']  # this plugin would make a folder in /opt
    for table, values in text.items():
        lines += [f"[{table}]"] if table else []
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def spec(default: Json, binds: Sequence[str]) -> Json:
    """Return the runtime spec of every container: containerd's own default, and directories of this machine, read-only.

    Pods' volumes are mounted later, so that they cover these directories.
    """
    outer_first = sorted(binds, key=lambda path: path.rstrip("/").count("/"))
    more = [{"destination": p, "source": p, "type": "bind", "options": ["rbind", "ro"]} for p in outer_first]
    return {**default, "mounts": [*default["mounts"], *more]}


def cni(node: int, folder: Path) -> Json:
    """Return the network configuration: each pod has a link to the wire, which routes all of its packets."""
    subnet = f"{network.pod_address(node, 0)}/24"
    ranges = {"ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]}
    ipam = {"type": "host-local", **ranges, "dataDir": f"{folder}/addresses"}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}]}


def kubelet(node: int, folder: Path, cgroup: str, heartbeat: float) -> Json:
    """Return the kubelet's configuration. `heartbeat`: seconds.

    The node's lease is renewed four times in its duration, which is a whole number of seconds.
    """
    small = dict.fromkeys(("nodefs.available", "nodefs.inodesFree", "imagefs.available"), "1%")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.node_address(node),
        "port": PORT,
        "healthzPort": 0,  # all nodes would use the same port
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "clusterDNS": [network.DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{folder}/resolv.conf",
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,  # kube-proxy makes the chains that it needs
        "nodeStatusUpdateFrequency": f"{heartbeat:.1f}s",
        "nodeLeaseDurationSeconds": max(1, round(4 * heartbeat)),
        "evictionHard": {"memory.available": "100Mi", **small},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "featureGates": {"DevicePlugins": False},  # its sockets would be in /var/lib/kubelet, with any root
    }


def kubelet_words(name: str, node: int, folder: Path, kubeconfig: Path) -> list[str]:
    """Return the kubelet's arguments."""
    words = {
        "config": f"{folder}/kubelet.json",
        "kubeconfig": kubeconfig,
        "root-dir": f"{folder}/kubelet",
        "cert-dir": f"{folder}/certificates",
        "volume-plugin-dir": f"{folder}/plugins",
        "container-runtime": "remote",
        "container-runtime-endpoint": f"unix://{SOCKET}",
        "hostname-override": name,
        "node-ip": network.node_address(node),
        "v": 2,
    }
    return [f"--{key}={value}" for key, value in words.items()]
