"""Tools that a model may call: how they are described and called (`tool`), built-in ones, and what the tools of one
attempt share (`workplace`).
"""
