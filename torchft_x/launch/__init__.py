"""From a TorchX component to supervised processes. See docs/design.md."""
