"""The protocol: rules as functions and small machines. No clock, socket, thread, tensor or log lives here."""
