"""Build the view of a job for people: present activities and past events. `overview.overview` is the entry.

* `overview`: the object that `/status.json`, the page and `torchft_x status` show; its fields are in docs/operate.md.
* `activity`: the present activity of a group, as one word and a clause.
* `history`: the newest quorums, losses and refusals, each with its reason, and counts of all of them.
* `facts`: what a group reports about itself for people. `attempts`: reports of supervisors about their groups.
* `speed`: steps per second of the job, and groups whose own part of a step takes longer than that of the others.
"""
