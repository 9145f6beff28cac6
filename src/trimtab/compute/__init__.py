"""Speed: vectors that fuse what is linear, programs written down once, and a compiled kernel.

It knows no algorithm and no problem, and imports core only.
"""
