"""``torchft_x doctor``: checks what a job needs on this machine. Changes and ends nothing.

`runner` runs the checks that `checks` lists; the others have one check after the other, by what they look at.
"""
