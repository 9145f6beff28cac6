"""Runs on disk, step sizes raced, algorithms compared.

Imports simulation, problems, algorithms and core; what is shown of it lives in report and cli.
"""
