"""What the URL of a store may not hold."""

NO_CREDENTIALS = (
    "the URL holds a user, a password or a query; credentials belong into the environment, where your cloud's own "
    "commands look for them: leave only scheme://bucket/folder"
)


def holds_credentials(url: str) -> bool:
    """Before the host, or behind a question mark: either would end up in files and error texts. In the name of a
    folder of this machine a question mark is a letter like any other.
    """
    scheme, _, rest = url.partition("://")
    return "@" in rest.partition("/")[0] or ("?" in rest and scheme != "file")
