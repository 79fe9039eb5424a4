"""From a TorchX component to supervised processes.

A job (`job`) becomes a TorchX app; `schedulers` adjust the request; in the container a supervisor (`supervisor`) starts
one life after the other (`workers`, `process`), and `postmortem` collects what explains a death or a hang.

* `cli`: command lines of all processes of a job: arguments in, a configuration out.
"""
