"""What the URL of a store may not hold."""

NO_CREDENTIALS = (
    "the URL holds a user, a password or a query; credentials belong into the environment, where your cloud's own "
    "commands look for them: leave only scheme://bucket/folder"
)


def holds_credentials(url: str) -> bool:
    """Before the host, or behind a question mark: either would end up in files and error texts."""
    authority, _, _ = url.partition("://")[2].partition("/")
    return "@" in authority or "?" in url
