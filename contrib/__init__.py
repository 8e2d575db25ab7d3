"""Modules to be proposed to other projects; contrib/README.md says how. Nothing here imports probtx_pyro."""
