"""A cohort over the machines of a Ray cluster; its clients' states stay where the clients run.

The driver (executor, driver, actor_pool, recovery) decides; a shard (actor, shard) owns clients
and does as it is told. Imports simulation and what stands below; Ray is imported when it is used.
"""
