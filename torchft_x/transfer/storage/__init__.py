"""Live state between groups through a folder of any fsspec file system: `transport`."""
