"""What a run did: the event log, and what people read from it. Never imports torch, grpc or the training side."""

from torchft_x.observe.events import EventLog, read_events, subscribe
from torchft_x.observe.report import summary
from torchft_x.observe.story import Story

__all__ = ["EventLog", "Story", "read_events", "subscribe", "summary"]
