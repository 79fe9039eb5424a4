"""``torchft_x doctor``: checks what a job needs on this machine."""
