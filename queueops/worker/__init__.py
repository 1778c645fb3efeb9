"""The processes that run jobs: a supervisor, a zygote, and the children forked from it."""
