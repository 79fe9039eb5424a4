"""A state dict as a layout and bytes, and back. No pickle."""
