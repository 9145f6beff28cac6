"""Folders of operator and sites, the problem file, the job, its model, and how far it is.

Stands beside transport. Imports storage, message and events; knows no protocol.
"""
