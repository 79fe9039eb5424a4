"""Codecs between wire messages and values of `core`. They check everything that arrives (`rpc.transport.limits`).

* `generic`: codecs made from dataclasses. `field_limits`: limits by field name.
* `messages`: sessions, quorums, and torchft's messages. `ranks`: calls between a group's ranks and their group server.
* `supervisors`: messages from and to supervisors.
"""
