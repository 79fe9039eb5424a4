"""All-reduce in a fixed order: the bits of the result depend on the slots only, not on their division among members."""
