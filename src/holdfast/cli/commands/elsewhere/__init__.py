"""The work of commands that run on other machines, or on many processes of this one."""
