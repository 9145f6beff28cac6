"""Speed: lazy vectors, tapes and a compiled kernel.

It knows no algorithm and no problem, and imports core only.
"""
