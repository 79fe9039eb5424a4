from tests.extended.kubernetes.inputs import expand
from tests.extended.kubernetes.rules import CrashBackOff, Probe, phase, quantity, runs_again


def test_a_crash_is_restarted_at_once_then_after_10_20_40_and_at_most_300_seconds() -> None:
    back_off, now, waits = CrashBackOff(), 1000.0, []
    for _ in range(8):
        start = back_off.start_at(now)
        waits.append(start - now)
        back_off.started(start)
        now = start + 1
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]
    assert back_off.start_at(now + 599) > now + 599
    assert back_off.start_at(now + 601) == now + 601  # forgiven


def test_a_probe_changes_its_mind_at_the_thresholds() -> None:
    probe = Probe({"failureThreshold": 2, "successThreshold": 2, "periodSeconds": 1}, started=5.0)
    seen = []
    for now, good in enumerate([True, True, False, True, False, False, True]):
        probe.answered(good, float(now))
        seen.append(probe.passes)
    assert seen == [False, True, True, True, True, False, False]
    assert probe.due == 7.0


def test_policies_and_phases() -> None:
    assert [runs_again(p, c) for p in ("Always", "OnFailure", "Never") for c in (0, 1)] == [
        *(True, True),
        *(False, True),
        *(False, False),
    ]
    assert phase("Never", [None], begun=False) == "Pending"
    assert phase("Never", [0, None], begun=True) == "Running"
    assert phase("Never", [0, 1], begun=True) == "Failed"
    assert phase("OnFailure", [0, 1], begun=True) == "Running"
    assert phase("OnFailure", [0, 0], begun=True) == "Succeeded"


def test_variables_in_arguments() -> None:
    assert expand("$(A)-$(B) $$(A) $A", {"A": "1"}) == "1-$(B) $(A) $A"


def test_quantities() -> None:
    assert (quantity("512Mi"), quantity("1.5G"), quantity("7")) == (512 << 20, 1_500_000_000, 7)
