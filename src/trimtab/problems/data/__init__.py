"""Loaders of real data, and the files they read.

Files are searched for in folders, and downloaded if none has them. Imports errors, _files and
`partition`.
"""
