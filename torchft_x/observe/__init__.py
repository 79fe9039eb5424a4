"""What a run did: the event log, and what people read from it. Never imports torch, grpc or the training side."""

from torchft_x.observe.console import Story
from torchft_x.observe.events import EventLog, read_events, subscribe
from torchft_x.observe.report import summary

__all__ = ["EventLog", "Story", "read_events", "subscribe", "summary"]
