"""Bridges to other libraries: each module here is the only importer of its one."""
