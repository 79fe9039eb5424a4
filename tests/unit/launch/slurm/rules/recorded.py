"""Recorded output of real Slurm for jobs of all kinds, of 25 November 2026.

It is that of squeue with ``launch.slurm.rules.queue.output_format``.

Each version ran the same jobs: an array of three tasks of which one's node was set DOWN; batch scripts that ended with
0, 1, 2, 137 and by SIGKILL; tasks that were cancelled while they ran, and while they waited; arrays whose tasks wait in
one line. 23.11 and 24.05 were not recorded. The functions that print these ten fields (src/squeue/print.c of the
branches slurm-23.11, slurm-24.05 and slurm-24.11 of SchedMD/slurm) are the same as those of 24.11; those of 22.05
differ in Exit_Code only.
"""

from __future__ import annotations

V22_05_8 = """\
1|1|0|CANCELLED|0||2026-11-25T20:07:33|None|app-trainer|torchft_x:app:t1:/runs/7|
2_[0-3]|2|0|CANCELLED|0||2026-11-25T20:07:33|None|app-trainer|torchft_x:app:t2:/runs/7|
5|5|0|CANCELLED|0||2026-11-25T20:07:33|None|app-trainer|torchft_x:app:t5:/runs/7|
3_[0,2-3]|3|0|PENDING|0||2026-11-25T21:07:33|BeginTime|app-trainer|torchft_x:app:t3:/runs/7|
6_0|6|0|CANCELLED|15|n1|2026-11-25T20:07:34|None|app-trainer|torchft_x:app:t6:/runs/7|
12_0|12|0|COMPLETED|0|n4|2026-11-25T20:06:36|None|app-trainer|torchft_x:app:t12:/runs/7|
13_0|13|0|FAILED|256|n4|2026-11-25T20:06:37|NonZeroExitCode|app-trainer|torchft_x:app:t13:/runs/7|
14_0|14|0|FAILED|512|n4|2026-11-25T20:06:38|NonZeroExitCode|app-trainer|torchft_x:app:t14:/runs/7|
15_0|15|0|FAILED|35072|n4|2026-11-25T20:06:39|NonZeroExitCode|app-trainer|torchft_x:app:t15:/runs/7|
16_0|16|0|FAILED|9|n4|2026-11-25T20:06:40|JobLaunchFailure|app-trainer|torchft_x:app:t16:/runs/7|
18_[0-192:8]|18|0|PENDING|0||2026-11-25T21:06:35|BeginTime|app-trainer|torchft_x:app:t18:/runs/7|
19_[0-9%2]|19|0|PENDING|0||2026-11-25T21:06:35|BeginTime|app-trainer|torchft_x:app:t19:/runs/7|
20_[0]|20|0|PENDING|0||N/A|JobHeldUser|app-trainer|torchft_x:app:t20:/runs/7|
21_0|21|0|RUNNING|0|n1|2026-11-25T20:06:36|None|app-trainer|torchft_x:app:t21:/runs/7|
21_1|21|1|PENDING|0||2026-11-25T20:06:48|BeginTime|app-trainer|torchft_x:app:t21:/runs/7|
21_2|21|1|PENDING|0||N/A|job requeued in held state|app-trainer|torchft_x:app:t21:/runs/7|
"""
V24_11_5 = """\
6_0|6|0|CANCELLED|0:15|n1|2026-11-25T20:07:47|None|app-trainer|torchft_x:app:t6:/runs/7|
1|1|0|CANCELLED|0:0||2026-11-25T20:07:45|BeginTime|app-trainer|torchft_x:app:t1:/runs/7|
2_[0-3]|2|0|CANCELLED|0:0||2026-11-25T20:07:45|BeginTime|app-trainer|torchft_x:app:t2:/runs/7|
5|5|0|CANCELLED|0:0||2026-11-25T20:07:45|BeginTime|app-trainer|torchft_x:app:t5:/runs/7|
3_[0,2-3]|3|0|PENDING|0:0||2026-11-25T21:07:44|BeginTime|app-trainer|torchft_x:app:t3:/runs/7|
12_0|12|0|COMPLETED|0:0|n4|2026-11-25T20:06:15|None|app-trainer|torchft_x:app:t12:/runs/7|
14_0|14|0|FAILED|2:0|n4|2026-11-25T20:06:17|NonZeroExitCode|app-trainer|torchft_x:app:t14:/runs/7|
15_0|15|0|FAILED|137:0|n4|2026-11-25T20:06:17|NonZeroExitCode|app-trainer|torchft_x:app:t15:/runs/7|
16_0|16|0|FAILED|0:9|n4|2026-11-25T20:06:17|RaisedSignal:9(Killed)|app-trainer|torchft_x:app:t16:/runs/7|
13_0|13|0|FAILED|1:0|n4|2026-11-25T20:06:16|NonZeroExitCode|app-trainer|torchft_x:app:t13:/runs/7|
18_[0-192:8]|18|0|PENDING|0:0||2026-11-25T21:06:14|BeginTime|app-trainer|torchft_x:app:t18:/runs/7|
19_[0-9%2]|19|0|PENDING|0:0||2026-11-25T21:06:14|BeginTime|app-trainer|torchft_x:app:t19:/runs/7|
20_[0]|20|0|PENDING|0:0||N/A|JobHeldUser|app-trainer|torchft_x:app:t20:/runs/7|
21_0|21|0|RUNNING|0:0|n1|2026-11-25T20:06:15|None|app-trainer|torchft_x:app:t21:/runs/7|
21_1|21|1|PENDING|0:0||2026-11-25T20:06:26|BeginTime|app-trainer|torchft_x:app:t21:/runs/7|
21_2|21|1|PENDING|0:0||N/A|job requeued in held state|app-trainer|torchft_x:app:t21:/runs/7|
"""
ALL = {"22.05.8": V22_05_8, "24.11.5": V24_11_5}
"""Recordings by version. Two recordings of each were merged, so that ids of the second one are higher by ten or twenty.
"""


def as_24_11(line: str) -> str:
    """Return a line of 22.05's as 24.11 writes it, with the wait status split."""
    parts = line.split("|")
    status = int(parts[4])
    parts[4] = f"{status >> 8}:{status & 0x7F}"
    return "|".join(parts)
