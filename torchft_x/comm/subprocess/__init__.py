"""Process groups in a child process: a communication library that hangs or dies there can't touch the trainer."""
