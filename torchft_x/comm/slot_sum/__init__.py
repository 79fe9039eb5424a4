"""All-reduce in a fixed order, so that the result does not depend on who computed which slot."""
