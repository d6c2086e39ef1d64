"""Running one command so that it can neither harm the machine nor outlive its call: what sandboxed tools and scorers
that run code stand on. `confining` starts and watches, `launcher` is the small program that does the confining.
"""
