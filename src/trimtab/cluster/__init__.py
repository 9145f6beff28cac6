"""Run cohorts on the machines of a Ray cluster; client states stay where their clients run.

The driver process (executor, driver, actor_pool, recovery) decides, and actors (actor, shard) own
clients and run what the driver requests. Imports simulation and the levels below it. Ray is an
extra: it is imported on first use.
"""
