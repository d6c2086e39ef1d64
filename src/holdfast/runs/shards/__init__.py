"""Sharded runs as readers see them: where shards are, one copy of all their records, and one status.

A shard is a folder `shards/<i>-of-<n>` of the run, with a journal, plan and data of its own. Everything that answers
samples works on a shard as on any run. Readers get a copy of the run in the user's cache in which the records of all
shards are one journal (`copy`, made by `merger`), so that they need to know nothing of shards either.
"""
