"""The lighthouse's process: its servers, its journal, its log."""
