"""A full cluster: nodes with the real kubelet, containerd and runc. `python -m tests.extended.kubernetes.full`."""
