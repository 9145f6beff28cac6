"""Loaders of real data: one module for each data set, and the files they come from.

Files are looked for in folders, and downloaded if they are nowhere. Imports errors and _files.
"""
