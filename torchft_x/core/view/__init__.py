"""What people are shown of a job: who does what now, and what has happened. `overview.overview` is the entry.

* `overview`: the object that `/status.json`, the page and `torchft_x status` show; its fields are in docs/page.md.
* `activity`: what a group does now, in one word and a few more.
* `history`: the newest quorums, losses and refusals, each with its reason, and how many there have been.
* `lives`: what supervisors have said of their groups.
* `step_rate`: how fast the job is. `durations`: how long things took, as a histogram.
"""
