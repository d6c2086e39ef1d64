"""The web server of the viewer: who may connect, what is sent, and the streams that keep open pages up to date."""
