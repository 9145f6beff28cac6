"""Speed: lazy vectors, traced programs, captured graphs and a compiled kernel.

Nothing here knows an algorithm or a problem. Imports core only.
"""
