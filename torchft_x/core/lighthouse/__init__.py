"""Decides who trains together and how far they may run. `machine.Lighthouse` is the entry; the rest are its parts."""
