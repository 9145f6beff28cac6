"""Folders of operator and sites, the problem file, the job, and what is told of them.

Stands beside transport.
"""
