"""The runs of a store: finding them, checking them, deciding whom to trust, removing them."""
