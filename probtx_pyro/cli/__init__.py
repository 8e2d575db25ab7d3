"""The command line, ``probtx``."""
